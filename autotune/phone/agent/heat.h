#ifndef AUTOTUNE_HEAT_H
#define AUTOTUNE_HEAT_H

/* Waits a while if the device is hot. */
void rest_if_hot(void);

/* Returns whether so many processes want to run that each waits for more than half of the time. */
int is_busy(void);

#endif
