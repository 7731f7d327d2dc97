// Where a program for Android begins. The kernel passes arguments and environment on the stack; the C library takes them
// from there, and calls main. Constructors of the program, of which the agent has none, would be called by the linker.
#include <stdlib.h>

int main(int count, char **arguments, char **environment);
void autotune_start(void *stack);

static void *const structors[4];

void autotune_start(void *stack) {
    __libc_init(stack, 0, main, structors);
}

#if defined(__aarch64__)
__asm__(".globl _start\n.type _start,%function\n_start:\nmov x29, #0\nmov x30, #0\nmov x0, sp\nb autotune_start\n");
#elif defined(__arm__)
__asm__(".arm\n.globl _start\n.type _start,%function\n_start:\nmov fp, #0\nmov lr, #0\nmov r0, sp\nb autotune_start\n");
#elif defined(__x86_64__)
__asm__(".globl _start\n.type _start,@function\n_start:\nxor %ebp, %ebp\nmov %rsp, %rdi\nand $-16, %rsp\n"
        "call autotune_start\nhlt\n");
#else
#error "no start for this processor"
#endif
