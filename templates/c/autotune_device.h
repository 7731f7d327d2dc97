/* Whether what a driver reports names a device. Used by autotune.c and by headers of other kernels, which a program's
   macros may precede: hence the underscores. */
#ifndef AUTOTUNE_DEVICE_H
#define AUTOTUNE_DEVICE_H

#include <stdlib.h>
#include <string.h>

/* Writes a text as names of devices are written: lower case, with hyphens, without "(TM)", revisions and cores. */
static inline void autotune_plain_name(const char *text_, char *plain_, int size_) {
    static const char *const left_out_[] = {"tm", "r", "c", "mc", "mp", "r0p", "r1p", "r2p"};
    enum { SIGNS_ = 3 }; /* the first of these; a number follows the others */
    int length_ = 0, begin_ = 0, number_, digits_;
    for (;; text_++) {
        const char one_ = *text_ >= 'A' && *text_ <= 'Z' ? (char)(*text_ - 'A' + 'a') : *text_;
        if ((one_ >= 'a' && one_ <= 'z') || (one_ >= '0' && one_ <= '9')) {
            if (length_ < size_ - 2) plain_[length_++] = one_;
            continue;
        }
        digits_ = length_;
        while (digits_ > begin_ && plain_[digits_ - 1] >= '0' && plain_[digits_ - 1] <= '9') digits_--;
        for (number_ = 0; number_ < (int)(sizeof left_out_ / sizeof left_out_[0]); number_++)
            if ((number_ < SIGNS_) == (digits_ == length_) && (int)strlen(left_out_[number_]) == digits_ - begin_
                    && strncmp(plain_ + begin_, left_out_[number_], (size_t)(digits_ - begin_)) == 0)
                length_ = begin_;
        if (length_ > begin_) plain_[length_++] = '-';
        begin_ = length_;
        if (one_ == '\0' || one_ == ':') break; /* behind a colon, AMD lists features */
    }
    plain_[length_ > 0 ? length_ - 1 : 0] = '\0';
}

/* Whether a plain text ends in a device's name, or is that name without the maker. */
static inline int autotune_ends_in(const char *plain_, const char *name_) {
    const size_t all_ = strlen(plain_), some_ = strlen(name_);
    const char *const model_ = strchr(name_, '-');
    if (all_ >= some_ && strcmp(plain_ + all_ - some_, name_) == 0)
        return all_ == some_ || plain_[all_ - some_ - 1] == '-';
    return model_ && strcmp(plain_, model_ + 1) == 0;
}

/* `text_` is CL_DEVICE_NAME, CL_DEVICE_VERSION or CL_DEVICE_OPENCL_C_VERSION; a name may end in a number of cores. */
static inline int autotune_is_named(const char *name_, const char *text_, unsigned units_) {
    char plain_[512], model_[128];
    const char *const of_arm_ = strstr(name_, "-mc"), *const cores_ = of_arm_ ? of_arm_ : strstr(name_, "-cu");
    const size_t length_ = cores_ ? (size_t)(cores_ - name_) : strlen(name_);
    if (length_ >= sizeof model_ || (cores_ && (unsigned)atoi(cores_ + 3) != units_)) return 0;
    memcpy(model_, name_, length_);
    model_[length_] = '\0';
    autotune_plain_name(text_, plain_, (int)sizeof plain_);
    return autotune_ends_in(plain_, model_);
}

#endif
