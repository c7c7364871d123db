/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Job descriptions as no client sends them, or an evil one. */
#include <string.h>

#include "host.h"

static unsigned seed = 1;

static unsigned dice(unsigned sides)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 8) % sides;
}

/* With control characters now and then: a job that has them goes no further. */
static char *noise(unsigned most)
{
	unsigned n = dice(most + 1), lowest = dice(50) ? 0x20 : 1;
	char *text;

	if (dice(4) == 0)
		return NULL;
	text = malloc(n + 1);
	for (unsigned i = 0; i < n; i++) {
		unsigned c = lowest + dice(256 - lowest);

		text[i] = c == 0x7f && lowest > 1 ? ' ' : (char)c;
	}
	text[n] = '\0';
	return text;
}

void hostile(void)
{
	static const char *scripts[] = { "garbage", "none", "leave", "refuse", "x", "#CARMA mem=1G\n" };
	job_desc_msg_t job, change;
	char *err = NULL;
	job_record_t *record;

	empty(&job);
	empty(&change);
	if (dice(2))
		job.script = dice(3) ? strdup(scripts[dice(6)]) : noise(300);
	if (dice(500) == 0) {
		free(job.script);
		job.script = strdup("huge");
	}
	job.partition = dice(2) ? strdup("gpu") : noise(20);
	job.tres_per_node = dice(2) ? strdup(GRES "gpu:1") : noise(40);
	job.tres_per_job = noise(20);
	job.tres_per_socket = noise(20);
	job.tres_per_task = noise(20);
	job.admin_comment = noise(30);
	job.comment = noise(30);
	job.name = noise(30);
	job.account = noise(30);
	job.min_nodes = dice(2) ? NO_VAL : dice(1000);
	job.num_tasks = dice(2) ? 0 : 0xffffffff;
	job.ntasks_per_node = (uint16_t)dice(65536);
	if (dice(3) == 0)
		for (unsigned i = dice(dice(1000) ? 8 : 10000); i > 0; i--) {
			char *e = noise(20);

			add_spank(&job, dice(2) ? "CARMA_X=1" : e);
			free(e);
		}
	job_submit(&job, dice(100000), dice(2) ? &err : NULL);
	free(err);
	err = NULL;
	/* slurmctld has made a record of it; now comes a change, as hostile */
	record = record_of(&job);
	change.tres_per_node = job.tres_per_node;
	change.partition = job.partition;
	change.comment = job.name;
	MODIFY(&change, record, dice(3), &err);
	free(record);
	free(err);
	clear(&job);
}
