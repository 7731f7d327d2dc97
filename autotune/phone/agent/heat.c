/* Rests of a hot device: its temperature by Qualcomm's driver, else by the thermal zones of GPUs. And the load. */
#include "heat.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "detached.h"

#define HOT 85000 /* thousandths of a degree Celsius */
#define COOL 75000
#define NONSENSE 150000 /* no device works above it */
#define MOST_REST_S 60 /* at once */
#define STUCK_S 15     /* of a rest without any change: the sensor is stuck */
#define ZONES 128
#ifndef LOADAVG
#define LOADAVG "/proc/loadavg"
#endif

static char path[512]; /* of the file that has the temperature; empty if there is none */

/* Reads the first word of a file; returns 0 if there is none. */
static int read_word(const char *from, char *word, int room) {
    FILE *file = fopen(from, "r");
    int is_there = file && fgets(word, room, file);
    if (file)
        fclose(file);
    return is_there && word[0] != '\n';
}

/* Returns the temperature, 0 if it cannot be read or be true. */
static long temperature(void) {
    char word[32];
    long found = path[0] && read_word(path, word, sizeof word) ? strtol(word, NULL, 10) : 0;
    return found < NONSENSE ? found : 0;
}

static void find_file(void) {
    const char *given = getenv("AUTOTUNE_SYS"), *system = given ? given : "/sys";
    char type[512], word[32];
    int zone;
    snprintf(path, sizeof path, "%s/class/kgsl/kgsl-3d0/temp", system);
    for (zone = 0; !temperature() && zone < ZONES; zone++) {
        snprintf(type, sizeof type, "%s/class/thermal/thermal_zone%d/type", system, zone);
        path[0] = '\0';
        if (read_word(type, word, sizeof word) && (!strncmp(word, "gpu", 3) || !strncmp(word, "GPU", 3) ||
                                                   !strncmp(word, "mali", 4) || !strncmp(word, "kgsl", 4)))
            snprintf(path, sizeof path, "%s/class/thermal/thermal_zone%d/temp", system, zone);
    }
}

void rest_if_hot(void) {
    static int is_known;
    long first;
    int second, has_changed = 0;
    if (!is_known)
        find_file();
    is_known = 1;
    first = temperature();
    if (first <= HOT)
        return;
    fprintf(stderr, "the device has %ld degrees Celsius: resting\n", first / 1000);
    for (second = 0; second < MOST_REST_S && temperature() > COOL && !is_interrupted; second++) {
        poll(NULL, 0, 1000);
        has_changed |= temperature() != first;
        if (second >= STUCK_S && !has_changed) {
            fputs("its temperature did not change while it rested, and is not read any more\n", stderr);
            path[0] = '\0';
        }
    }
}

int is_busy(void) {
    char word[32];
    return read_word(LOADAVG, word, sizeof word) && strtod(word, NULL) > 2.0 * (double)sysconf(_SC_NPROCESSORS_ONLN);
}
