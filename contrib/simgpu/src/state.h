/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one simulated node: a file that every process maps.
 *
 * The file holds two snapshots. A change is made on the spare one and published by one atomic store, under a
 * robust mutex: a process that is killed at any point leaves the last published snapshot as it was.
 */
#ifndef SIMGPU_STATE_H
#define SIMGPU_STATE_H

#include "snapshot.h"

#define SIM_STATE_ENV "SIMGPU_STATE"

struct sim; /* an open state */

/* One MIG instance to be made: GPU index and profile name. */
struct sim_mig {
	uint32_t gpu;
	const struct mig_profile *profile;
};

/* Makes a new state file, mode 0666 because jobs run as any user. 0, or -1 with sim_error(). */
int sim_create(const char *path, const struct model *m, uint32_t gpus, double scale, const struct sim_mig *mig,
	       int migs);

/* Opens a state; path NULL means $SIMGPU_STATE. NULL with sim_error() on failure. */
struct sim *sim_open(const char *path);
void sim_close(struct sim *sim);

/* What went wrong last in this thread. */
const char *sim_error(void);
int sim_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* sets it, returns -1 */

/* Simulated seconds since the state was made, and how many of them pass in a real second. */
double sim_now(const struct sim *sim);
double sim_scale(const struct sim *sim);

/* Changes whenever something that can alter a job's rate has happened. */
uint32_t sim_generation(const struct sim *sim);

/* Says that the process in that slot is alive now: one that is killed ends there, or where sim_tell() was. */
void sim_beat(struct sim *sim, uint32_t slot);

/* Removes processes that are gone, unless somebody looked less than max_age real seconds ago. */
void sim_reap(struct sim *sim, double max_age);

/* A private copy of the state, advanced to now. */
void sim_read(struct sim *sim, struct sim_snap *copy);

/* The same for who shows a GPU's counters, after sim_reap(): what was told stands, no counter goes back. */
void sim_tell(struct sim *sim, struct sim_snap *copy);

/* A change: the snapshot to alter, advanced to now; then sim_commit(), or sim_abort() to leave things as they were. */
struct sim_snap *sim_begin(struct sim *sim);
void sim_commit(struct sim *sim, bool rates_changed);
void sim_abort(struct sim *sim);

/* Start time of a process in clock ticks since boot; 0 if it is gone or a zombie. */
uint64_t sim_process_start(int pid);

/* For the tests: the heartbeat of a slot, set by hand. */
void sim_set_beat(struct sim *sim, uint32_t slot, double when);

#endif
