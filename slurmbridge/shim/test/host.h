/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The parts of the host program: see host.c. */
#ifndef HOST_H
#define HOST_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#include "../job.h"

/* How slurmctld of this version writes a GRES into a job. */
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
#define GRES "gres/"
#else
#define GRES "gres:"
#endif

/* A user who is neither root nor SlurmUser, whoever runs the tests. */
#define A_USER ((uint32_t)getuid() + 1)

#define CHECK(what) \
	do { \
		if (!(what)) { \
			printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
			exit(1); \
		} \
	} while (0)

/* The plugin, as slurmctld calls it. */
extern int init(void);
extern int fini(void);
extern int job_submit(job_desc_msg_t *job, uint32_t uid, char **err_msg);
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 2, 0)
extern int job_modify(job_desc_msg_t *job, job_record_t *record, uint32_t uid, char **err_msg);
#define MODIFY(job, record, uid, err) job_modify(job, record, uid, err)
#else
extern int job_modify(job_desc_msg_t *job, job_record_t *record, uint32_t uid);
#define MODIFY(job, record, uid, err) job_modify(job, record, uid)
#endif

/* slurmctld.c */
extern unsigned long errors_logged;
extern char first_info[]; /* the first line that the shim has logged */
extern char *default_part_name;
job_record_t *record_of(job_desc_msg_t *job);
void end_threads_late(void);

/* job.c */
double now_ms(void);
double cpu_ms(void);
void nap(void);
void empty(job_desc_msg_t *job);
void clear(job_desc_msg_t *job);
void add_spank(job_desc_msg_t *job, const char *entry);
const char *spank(const job_desc_msg_t *job, const char *name);
int submit(job_desc_msg_t *job, const char *script, char **err_msg);
int told(job_desc_msg_t *job, int rc, char **err_msg);

/* checks.c */
extern atomic_int hold, held; /* the fake libcarma keeps a call until hold is 0, and says so */
void check_annotate(const char *script);
void check_tasks_per_gpu(const char *script);
void check_no_gpus_of_tasks(void);
void check_forged(const char *script);
void check_answers(void);
void check_slot(void);
void check_keys(void);
void check_vars(void);
void check_keys_of_values(void);
void check_starved(void);
void check_stuck(void);
void check_tick(const char *script);
void check_long_tick(const char *script);
void check_tick_when_busy(void);
void check_none(const char *script);

/* refusals.c */
void check_texts(void);
void check_recovery(void);
void check_modify(void);
void check_switch(void);
void check_advised(const char *script);
void check_spank(const char *script);

/* whole.c */
void check_whole(void);

/* fairness.c */
void check_queue(void);
void check_flood(void);

/* hostile.c */
void hostile(void);

/* timing.c */
void time_it(long n, int threads);

#endif
