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
 * over. Returns NULL, having logged why, or an answer that the caller frees. */
char *worker_ask(uint32_t uid, char *ask, size_t len);

/* Whether a list of partitions names one that carma.toml has for recovery; its
 * name is written to name. Never waits for libcarma; false while that is missing. */
bool worker_recovers(const char *partitions, char *name, size_t room);

/* Whether a list of partitions names one of carma.toml's. As worker_recovers(). */
bool worker_manages(const char *partitions);

/* Log that a job goes on as it was written; one line a minute and a count. */
void worker_complain(const char *why);

/* Whether the switch file, carma.disable beside carma.toml, was there at the last look, half
 * a second ago. Never waits for a file system. */
bool worker_is_off(void);

#endif
