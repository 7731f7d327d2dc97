#ifndef AUTOTUNE_HEAT_H
#define AUTOTUNE_HEAT_H

/* Waits a while if the device is hot. */
void rest_if_hot(void);

#endif
