/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CARMA_SHIM_H
#define CARMA_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../libcarma/carma.h"

/* What libslurmfull exports and no public header declares, unchanged from
 * 22.05 to 26.05 (src/common/xmalloc.h, xstring.h, log.h). */
extern void *slurm_xcalloc(size_t count, size_t size, bool clear, bool may_fail, const char *file, int line, const char *func);
extern void slurm_xfree(void **item);
extern char *slurm_xstrdup(const char *text);
extern void slurm_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern int slurm_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Start the thread that loads libcarma and calls it. Never fails: without the
 * thread or the library every ask goes unanswered. */
void worker_start(const char *gres_prefix);

/* Ask libcarma about one job of a user (carma.h) for at most 50 ms. Takes ask
 * over. Returns an answer that the caller frees; NULL: libcarma leaves the job alone,
 * or, where why is set, it has not answered. */
char *worker_ask(uint32_t uid, char *ask, size_t len, const char **why);

/* The lines of a block of carma_whole (carma.h) for a job that names partitions, with commas
 * between; the caller frees them. NULL: none of the partitions is CARMA's, several are, or no
 * block is known. Never waits for libcarma. */
char *worker_whole(const char *partitions, const char *list, uint32_t gpus, bool constrains);

/* Whether a list of partitions names one that carma.toml has for recovery; its
 * name is written to name. Never waits for libcarma; false while that is missing. */
bool worker_recovers(const char *partitions, char *name, size_t room);

/* Whether a list of partitions names one of carma.toml's. As worker_recovers(). */
bool worker_manages(const char *partitions);

/* Whether carma.toml has a mode in which no job is changed or refused. As worker_recovers(). */
bool worker_watches(void);

/* Log what became of a job for which there is no answer, and why; one line a minute and a count. */
void worker_complain(const char *what, const char *why);
#define AS_WRITTEN "job accepted as written"

/* Whether the switch file, carma.disable beside carma.toml, was there at the last look, half
 * a second ago. Never waits for a file system. */
bool worker_is_off(void);

#endif
