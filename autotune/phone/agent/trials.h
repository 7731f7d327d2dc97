/* What can be done with a trial, which the result tells. */
#ifndef AUTOTUNE_TRIALS_H
#define AUTOTUNE_TRIALS_H

#include "work.h"

#define BUILD_LIMIT_MS 60000 /* as BUILD_LIMIT_S and RUN_LIMIT_S of the host: what exceeds it hangs */
#ifndef RUN_LIMIT_MS
#define RUN_LIMIT_MS 30000
#endif

#define UNFINISHED 75 /* exit status: start it again */

extern uint64_t spent_before_ms; /* by earlier starts */
extern uint32_t in_hand;         /* the trial that was begun last and has not ended, or NO_HANDLE */

uint64_t spent_ms(void);

/* Starts an agent unless one runs. Returns whether one was started, which knows of no trial yet. */
int need_agent(void);

/* Ends, so that a later start goes on; the trial in hand is not to blame. */
void leave(void);

/* Records that a trial is in hand, before anything of it runs. */
void begin(struct trial *trial);

/* Builds, checks and prepares a trial; of finalists both checks. Meanwhile `next`, if not NULL, is built by another
 * agent, for the next call. Returns 0 if the trial has failed. */
int set_up(struct trial *trial, int is_finalist, struct trial *next);

/* Times a trial that is set up. Returns 0 if it has failed. */
int time_trial(struct trial *trial, uint32_t round, double *time_ns);

/* The trial that is being built ahead, or NULL. */
struct trial *built_ahead(void);

/* Ends what is being built ahead. */
void stop_building(void);

/* Records that a finalist, whose checks are done, is no longer in hand. */
void put_aside(const struct trial *trial);

/* Runs both checks of a trial that is set up once more. Returns 0 if it has failed. */
int check_again(struct trial *trial);

/* Releases what a trial has set up. */
void clear(struct trial *trial);

/* Records that a trial was running when everything ended. Returns 0. */
int fail_lost(uint32_t trial);

#endif
