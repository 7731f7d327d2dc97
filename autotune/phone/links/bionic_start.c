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

#if defined(__arm__)
// Division, which compilers for 32-bit Arm call: of 64 bits the quotient is returned in r0 and r1, the rest in r2 and r3.
uint64_t autotune_divide(uint64_t dividend, uint64_t divisor, uint64_t *rest);

uint64_t autotune_divide(uint64_t dividend, uint64_t divisor, uint64_t *rest) {
    uint64_t quotient = 0, left = 0;
    for (int bit = 63; bit >= 0; bit--) {
        uint64_t carry = left >> 63;
        left = left << 1 | (dividend >> bit & 1);
        if (carry || left >= divisor) {
            left -= divisor;
            quotient |= (uint64_t)1 << bit;
        }
    }
    *rest = left;
    return quotient;
}

uint32_t __aeabi_uidiv(uint32_t dividend, uint32_t divisor);
uint64_t __aeabi_uidivmod(uint32_t dividend, uint32_t divisor);

uint32_t __aeabi_uidiv(uint32_t dividend, uint32_t divisor) {
    uint64_t rest;
    return (uint32_t)autotune_divide(dividend, divisor, &rest);
}

uint64_t __aeabi_uidivmod(uint32_t dividend, uint32_t divisor) {
    uint64_t rest, quotient = autotune_divide(dividend, divisor, &rest);
    return quotient | rest << 32;
}

__asm__(".arm\n.globl __aeabi_uldivmod\n.type __aeabi_uldivmod,%function\n__aeabi_uldivmod:\n"
        "push {r4, lr}\nsub sp, sp, #16\nadd r4, sp, #8\nstr r4, [sp]\nbl autotune_divide\n"
        "ldr r2, [sp, #8]\nldr r3, [sp, #12]\nadd sp, sp, #16\npop {r4, pc}\n");

// Conversions between numbers of 64 bits, which they call as well; numbers are positive.
double __aeabi_ul2d(uint64_t value);
uint64_t __aeabi_d2ulz(double value);

double __aeabi_ul2d(uint64_t value) {
    return (double)(uint32_t)(value >> 32) * 4294967296.0 + (double)(uint32_t)value;
}

uint64_t __aeabi_d2ulz(double value) {
    uint32_t high = (uint32_t)(value / 4294967296.0);
    return (uint64_t)high << 32 | (uint32_t)(value - (double)high * 4294967296.0);
}
#endif
