/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What is looked at and written in a job. */
#ifndef CARMA_JOB_H
#define CARMA_JOB_H

#include <slurm/slurm.h>

#include "shim.h"

/* Slurm 21.08 tells no Epilog how a job ended (SLURM_JOB_EXIT_CODE2, prep_script_slurmd.c): with 21.08.5
 * jobs shared, and none that ran out of GPU memory was requeued. */
#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(22, 5, 0)
#error "CARMA needs Slurm 22.05 or later; these are the headers of an earlier release (Ubuntu 22.04 has 21.08)"
#endif

/* Private to slurmctld; never looked into. */
typedef struct job_record job_record_t;

/* spank.c: drop the entries that look like CARMA's and those that are no entries;
 * make room for so many more; add CARMA_NAME=VALUE where there is room. */
void spank_clean(job_desc_msg_t *job);
void spank_grow(job_desc_msg_t *job, size_t more);
void spank_add(job_desc_msg_t *job, const char *name_value);

/* text.c: the name of the first text with a control character, and the character, or 0 and the
 * text that makes all of them too long; NULL: there is none. */
const char *text_with_control(const job_desc_msg_t *job, unsigned *byte);

/* record.c: what slurmctld says of a job that it has, and of itself. */
enum booking {
	NO_BOOKING,
	BOOKED,
	BOOKED_BY_NODES, /* the GPUs of a node follow from the job's nodes and tasks */
	UNKNOWN,
};

void record_init(void);
enum booking record_booking(job_record_t *record);
char *record_value(job_record_t *record, const char *name); /* for slurm_xfree(); NULL: none, or not known */

/* Variables of a record beside those of SPANK. */
#define ITS_EXTRA "SLURM_JOB_EXTRA" /* 24.11 to 26.05 */
#define ITS_PARTITION "SLURM_JOB_PARTITION"

const char *record_default_partition(void); /* NULL: there is none, or it is not known */
bool record_constrains(void); /* whether slurmctld compares jobs' extra with what nodes have there */
bool record_operates(uint32_t uid); /* whether slurmctld takes the user for an operator or administrator */

/* ask.c: libcarma's answer, or whole GPUs where no answer comes (late); the caller frees the text. gpus: made of the
 * job's tasks by slurmctld where the job names no GPUs. NULL: the job stays as written. */
char *answer_for(const job_desc_msg_t *job, uint32_t gpus, uint32_t submit_uid, bool *late);

/* whole.c: an answer as libcarma's (carma.h), by which a job without an answer has whole GPUs; the caller frees the
 * text. NULL: the job asks for no GPUs, not plainly, or not in one partition of CARMA's. */
char *whole_answer(const job_desc_msg_t *job, uint32_t gpus);

/* What a release of Slurm has. From 24.11 on jobs of srun wait for a constraint, too. */
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(24, 11, 0)
#define HAS_EXTRA 1
#else
#define HAS_EXTRA 0
#endif
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
#define GRES_PREFIX "gres/" /* slurm_get_next_tres() skips only "/" */
#else
#define GRES_PREFIX "gres:" /* slurm_opt writes it so up to 23.02 */
#endif

/* An unset field of 16 bits holds NO_VAL16. */
#define WIDE(v) ((v) == NO_VAL16 ? CARMA_NO_VAL : (uint32_t)(v))
#define TEXT(s) ((s) ? (s) : "")

static inline const char *extra_of(const job_desc_msg_t *job)
{
#if HAS_EXTRA
	return job->extra;
#else
	(void)job;
	return NULL;
#endif
}

#endif
