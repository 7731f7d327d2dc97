#ifndef AUTOTUNE_CHOICE_H
#define AUTOTUNE_CHOICE_H

#include <stddef.h>
#include <stdint.h>

extern uint32_t chosen[2];  /* platform and device */
extern int keeps_programs;  /* the driver caches what other processes built, and loads a binary no faster */

/* Finds the first device of the wanted kind and records what it is. Returns 0 without one. */
int choose_device(void);

/* Takes note of what the driver answered to a query. */
void note_driver(uint32_t query, const uint8_t *told, size_t bytes);

#endif
