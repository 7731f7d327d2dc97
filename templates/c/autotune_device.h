/* Whether what a driver reports names a device of the package. Used by autotune.c. */
#ifndef AUTOTUNE_DEVICE_H
#define AUTOTUNE_DEVICE_H

#include <stdlib.h>
#include <string.h>

/* Writes a text as names of devices are written: lower case, with hyphens, without "(TM)", revisions and numbers of cores. */
static void autotune_plain_name(const char *text, char *plain, int size) {
    static const char *const left_out[] = {"tm", "r", "c", "mc", "mp", "r0p", "r1p", "r2p"};
    enum { SIGNS = 3 }; /* the first of these; a number follows the others */
    int length = 0, begin = 0, number, digits;
    for (;; text++) {
        const char one = *text >= 'A' && *text <= 'Z' ? (char)(*text - 'A' + 'a') : *text;
        if ((one >= 'a' && one <= 'z') || (one >= '0' && one <= '9')) {
            if (length < size - 2) plain[length++] = one;
            continue;
        }
        for (digits = length; digits > begin && plain[digits - 1] >= '0' && plain[digits - 1] <= '9';) digits--;
        for (number = 0; number < (int)(sizeof left_out / sizeof left_out[0]); number++)
            if ((number < SIGNS) == (digits == length) && (int)strlen(left_out[number]) == digits - begin
                    && strncmp(plain + begin, left_out[number], (size_t)(digits - begin)) == 0)
                length = begin;
        if (length > begin) plain[length++] = '-';
        begin = length;
        if (one == '\0' || one == ':') break; /* behind a colon, AMD lists features */
    }
    plain[length > 0 ? length - 1 : 0] = '\0';
}

/* Whether a plain text ends in a device's name, or is that name without the maker. */
static int autotune_ends_in(const char *plain, const char *name) {
    const size_t all = strlen(plain), some = strlen(name);
    const char *const model = strchr(name, '-');
    if (all >= some && strcmp(plain + all - some, name) == 0) return all == some || plain[all - some - 1] == '-';
    return model && strcmp(plain, model + 1) == 0;
}

/* `text` is CL_DEVICE_NAME, CL_DEVICE_VERSION or CL_DEVICE_OPENCL_C_VERSION; a name may end in a number of cores. */
static int autotune_is_named(const char *name, const char *text, unsigned units) {
    char plain[512], model[128];
    const char *const of_arm = strstr(name, "-mc"), *const cores = of_arm ? of_arm : strstr(name, "-cu");
    const size_t length = cores ? (size_t)(cores - name) : strlen(name);
    if (length >= sizeof model || (cores && (unsigned)atoi(cores + 3) != units)) return 0;
    memcpy(model, name, length);
    model[length] = '\0';
    autotune_plain_name(text, plain, (int)sizeof plain);
    return autotune_ends_in(plain, model);
}

#endif
