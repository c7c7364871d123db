/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Drives the shim as slurmctld does, without a slurmctld, under the sanitizers:
 *
 *   host N      N hostile job descriptions, and the checks below
 *   host real   the same checks against the real libcarma
 *   host real calm  without the checks beside a flood: an emulated processor is too slow
 *   host advise the real libcarma with mode = "advise": jobs go as written, with an estimate
 *   host none   a libcarma that cannot be loaded: jobs are left as they are
 *   host time N N submissions by one thread and by 8 at once: how long job_submit takes
 *
 * It stands in for libslurmfull with the few functions that the shim uses.
 */
#include <pthread.h>
#include <string.h>

#include "host.h"

static void *submitter(void *script)
{
	for (int i = 0; i < 2000; i++)
		check_annotate(script);
	return NULL;
}

int main(int argc, char **argv)
{
	bool real = argc >= 2 && !strcmp(argv[1], "real"), calm = argc == 3;
	long n = argc == 2 && !real ? atol(argv[1]) : 0;
	bool none = argc == 2 && !strcmp(argv[1], "none");
	char script[] = "#!/bin/sh\n#CARMA mem=10G\n";
	pthread_t thread[8];

	if (none)
		end_threads_late();
	CHECK(init() == SLURM_SUCCESS);
	CHECK(!strcmp(first_info, "job_submit/carma: version unknown"));
	if (none) {
		check_none(script);
		check_texts();
		check_modify();
		return 0;
	}
	if (argc == 2 && !strcmp(argv[1], "advise")) {
		check_advised(script);
		return 0;
	}
	if (argc == 3 && !strcmp(argv[1], "time")) {
		time_it(atol(argv[2]), 1);
		time_it(atol(argv[2]), 8);
		return 0;
	}
	CHECK(init() == SLURM_SUCCESS); /* slurmctld 22.05 may do so on reconfigure */
	check_annotate(script);
	check_tasks_per_gpu(script);
	check_forged(script);
	check_texts();
	check_recovery();
	check_modify();
	check_switch();
	check_spank(script);
	check_queue();
	for (int i = 0; i < 8; i++)
		pthread_create(&thread[i], NULL, submitter, script);
	for (int i = 0; i < 8; i++)
		pthread_join(thread[i], NULL);
	if (!real) {
		check_answers();
		check_slot();
		check_keys();
		check_vars();
		check_whole();
		check_starved();
		check_stuck();
		check_tick(script);
		check_long_tick(script);
		check_tick_when_busy();
	} else {
		check_keys_of_values();
		check_no_gpus_of_tasks();
		if (!calm)
			check_flood();
	}
	for (long i = 0; i < n; i++)
		hostile();
	CHECK(fini() == SLURM_SUCCESS);
	printf("host: %ld hostile jobs, %lu lines logged\n", n, errors_logged);
	return 0;
}
