/* Outputs of checked runs: which of them the result keeps for the host, and which are far from the reference's. */
#ifndef AUTOTUNE_OUTPUTS_H
#define AUTOTUNE_OUTPUTS_H

#include "work.h"

/* Adds an output to the result, without contents if equal ones are there or, unless it `must`, the room is used up.
 * Returns 0 if it is the first output of the first check, and far from that of the reference. */
int keep_output(const struct trial *trial, uint8_t check, uint8_t number, const uint8_t *at, size_t bytes, int must);

/* Takes in an OUTPUT of an earlier start. */
void recall_output(struct cursor payload);

#endif
