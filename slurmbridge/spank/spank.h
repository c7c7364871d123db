/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef CARMA_SPANK_H
#define CARMA_SPANK_H

#include <stddef.h>

/* What a helper may print at most: it prints less than 8 KiB for eight GPUs. */
#define HELPER_OUTPUT_MAX (256 * 1024)

/* What an option may have at most (directive.MaxOption). */
#define KEYS_MAX 1024

/* Runs a program without arguments, with an environment of env, and takes what it prints. It is
 * killed when it has printed nothing for silence_ms, and when the caller or the caller's parent
 * has ended. Returns NULL and the output, which the caller frees, or why there is none. */
const char *helper_run(const char *path, char **env, int silence_ms, char **output, size_t *len);

/* Copies the entries of env that a helper gets; NULL without memory. The entries are env's own. */
char **helper_env(char **env);

/* What to do for each line of a TaskProlog's output. */
struct line_actions {
	void (*export)(void *to, const char *name, const char *value);
	void (*unset)(void *to, const char *name);
	void (*print)(void *to, const char *text, size_t len); /* len with the newline */
};

/* Takes output apart as slurmstepd does with that of a TaskProlog (_proc_stdout() in
 * src/slurmd/slurmstepd/task.c); what is not in that form is left out. Writes into output. */
void lines_apply(char *output, size_t len, const struct line_actions *act, void *to);

#endif
