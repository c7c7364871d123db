/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the shim refuses by itself, at submission and when a job is changed. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "host.h"

/* Checks a submission and a change that are refused, and what the user is told;
 * job_modify() has no way to tell before 23.02. */
static void refused(job_desc_msg_t *job, uint32_t uid, int rc, const char *why)
{
	char *err = NULL;

	CHECK(job_submit(job, uid, NULL) == rc);
	CHECK(job_submit(job, uid, &err) == rc && !strcmp(err, why));
	free(err);
	err = NULL;
	CHECK(MODIFY(job, NULL, uid, &err) == rc);
	CHECK(SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(23, 2, 0) || !strcmp(err, why));
	free(err);
}

static void taken(job_desc_msg_t *job, uint32_t uid)
{
	char *err = NULL;

	job->script = "none"; /* libcarma leaves it alone */
	errno = 0;
	CHECK(job_submit(job, uid, &err) == SLURM_SUCCESS && !err && !errno);
	job->script = NULL;
	CHECK(MODIFY(job, NULL, uid, &err) == SLURM_SUCCESS && !err && !errno);
}

/* In whatever partition, by whomever. */
void check_texts(void)
{
	job_desc_msg_t job;
	char why[100];

	for (unsigned byte = 1; byte < 256; byte++) {
		char text[] = { 'a', (char)byte, 'z', '\0' };

		empty(&job);
		job.partition = strdup(byte % 2 ? "plain" : "gpu");
		job.comment = strdup(text);
		snprintf(why, sizeof(why), "carma: the job's comment has a control character (byte %u); remove it", byte);
		if (byte < 0x20 || byte == 0x7f)
			refused(&job, byte % 3 ? A_USER : 0, EINVAL, why);
		else
			taken(&job, A_USER);
		clear(&job);
	}
#define TEXT_OF(field, what) { &job.field, what }
	const struct {
		char **field;
		const char *what;
	} some[] = {
		TEXT_OF(name, "name"), TEXT_OF(account, "account"), TEXT_OF(comment, "comment"), TEXT_OF(wckey, "wckey"),
		TEXT_OF(partition, "partition"), TEXT_OF(qos, "QOS"), TEXT_OF(features, "constraint"),
		TEXT_OF(prefer, "preferred features"), TEXT_OF(reservation, "reservation"), TEXT_OF(req_nodes, "list of nodes"),
		TEXT_OF(exc_nodes, "list of excluded nodes"), TEXT_OF(licenses, "licenses"), TEXT_OF(dependency, "dependency"),
		TEXT_OF(work_dir, "working directory"), TEXT_OF(std_out, "path of stdout"), TEXT_OF(std_err, "path of stderr"),
		TEXT_OF(std_in, "path of stdin"), TEXT_OF(clusters, "list of clusters"), TEXT_OF(network, "network"),
		TEXT_OF(tres_per_node, "GRES of a node"), TEXT_OF(tres_per_job, "GRES of the job"),
		TEXT_OF(tres_per_socket, "GRES of a socket"), TEXT_OF(tres_per_task, "GRES of a task"),
		TEXT_OF(cpus_per_tres, "CPUs per GPU"), TEXT_OF(mem_per_tres, "memory per GPU"), TEXT_OF(array_inx, "array"),
		TEXT_OF(mail_user, "mail address"), TEXT_OF(extra, "extra text"), TEXT_OF(container, "container"),
	};
	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		empty(&job);
		*some[i].field = "1\n1|0,7|running|gpu|";
		snprintf(why, sizeof(why), "carma: the job's %s has a control character (byte 10); remove it", some[i].what);
		refused(&job, A_USER, EINVAL, why);
	}
	/* Of a text without an end as little is read as of others. */
	for (size_t more = 0; more < 2; more++) {
		empty(&job);
		job.comment = malloc((512 << 10) + 2);
		memset(job.comment, 'x', (512 << 10) + 1);
		job.comment[(512 << 10) + more] = '\0';
		if (more)
			refused(&job, A_USER, EINVAL, "carma: the job's comment is too long; shorten it");
		else
			taken(&job, A_USER);
		clear(&job);
	}
	/* What is free text stays so. */
	char *argv[] = { "job.sh", "two\nlines" };
	empty(&job);
	job.submit_line = "sbatch --wrap=two\nlines";
	job.burst_buffer = "#BB x\n#BB y\n";
	job.admin_comment = "of an earlier\nplugin";
	job.argc = 2;
	job.argv = argv;
	taken(&job, A_USER);
}

void check_recovery(void)
{
	static char *closed[] = { "gpu-recovery", "gpu,gpu-recovery", "gpu-recovery,gpu", "a,gpu-recovery,,b" };
	static char *open[] = { "gpu", "gpu-recovery2", "gpu-rec", "xgpu-recovery", "", ",", "gpu,,plain" };
	static const char why[] = "carma: partition gpu-recovery accepts jobs only from CARMA; name another";
	job_desc_msg_t job;

	for (size_t i = 0; i < sizeof(closed) / sizeof(closed[0]); i++) {
		empty(&job);
		job.partition = closed[i];
		refused(&job, A_USER, ESLURM_ACCESS_DENIED, why);
		taken(&job, 0);
		taken(&job, getuid());
	}
	for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++) {
		empty(&job);
		job.partition = open[i];
		taken(&job, A_USER);
	}
	/* A job that names none goes to the site's default. A change that names none,
	 * as of the time limit, is not about the partition. */
	empty(&job);
	taken(&job, A_USER);
	char *err = NULL, *before = default_part_name;
	default_part_name = "gpu-recovery";
	CHECK(job_submit(&job, A_USER, &err) == ESLURM_ACCESS_DENIED && !strcmp(err, why));
	free(err);
	CHECK(MODIFY(&job, NULL, A_USER, NULL) == SLURM_SUCCESS);
	default_part_name = NULL;
	taken(&job, A_USER);
	default_part_name = before;
}

/* Only an administrator writes a booking into a pending job, or changes what it was
 * made for. env is what the job's record has. */
static void change(const char *env, bool gpus, bool nodes, bool others)
{
	job_desc_msg_t of, job;
	job_record_t *record;

	empty(&of);
	add_spank(&of, "A=1");
	if (env)
		add_spank(&of, "SPANK_CARMA_V=1");
	if (env && *env)
		add_spank(&of, env);
	record = record_of(&of);
	char **lists[] = { &job.tres_per_node, &job.tres_per_job, &job.tres_per_socket, &job.tres_per_task,
			   &job.cpus_per_tres, &job.mem_per_tres };
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		empty(&job);
		*lists[i] = GRES "gpu:3";
		CHECK(MODIFY(&job, record, A_USER, NULL) == (gpus ? ESLURM_ACCESS_DENIED : SLURM_SUCCESS));
		CHECK(MODIFY(&job, record, 0, NULL) == SLURM_SUCCESS);
		*lists[i] = "";
		CHECK(MODIFY(&job, record, A_USER, NULL) == (gpus ? ESLURM_ACCESS_DENIED : SLURM_SUCCESS));
		*lists[i] = GRES "carma:1";
		CHECK(MODIFY(&job, record, A_USER, NULL) == ESLURM_ACCESS_DENIED);
		CHECK(MODIFY(&job, record, 0, NULL) == SLURM_SUCCESS);
	}
	empty(&job);
	job.ntasks_per_tres = 1;
	CHECK(MODIFY(&job, record, A_USER, NULL) == (gpus ? ESLURM_ACCESS_DENIED : SLURM_SUCCESS));
	CHECK(MODIFY(&job, record, 0, NULL) == SLURM_SUCCESS);
	for (int i = 0; i < 5; i++) {
		empty(&job);
		*(i == 0 ? &job.min_nodes : i == 1 ? &job.max_nodes : &job.num_tasks) = 1;
		if (i > 2) {
			job.num_tasks = NO_VAL;
			*(i == 3 ? &job.ntasks_per_node : &job.sockets_per_node) = 1;
		}
		CHECK(MODIFY(&job, record, A_USER, NULL) == (nodes ? ESLURM_ACCESS_DENIED : SLURM_SUCCESS));
		CHECK(MODIFY(&job, record, 0, NULL) == SLURM_SUCCESS);
	}
	empty(&job);
	job.time_limit = 7;
	job.comment = "x";
	CHECK(MODIFY(&job, record, A_USER, NULL) == (others ? ESLURM_ACCESS_DENIED : SLURM_SUCCESS));
	clear(&of);
	free(record);
}

/* Entries that are dropped as repeated cost a comparison with each that is kept, under
 * slurmctld's locks. */
static void check_repeated(void)
{
	const uint32_t n = 200000;
	job_desc_msg_t job;
	char entry[16], *err = NULL;
	double start;

	empty(&job);
	job.script = strdup("none");
	job.spank_job_env = calloc(n + 1, sizeof(char *));
	for (uint32_t i = 0; i < n; i++) {
		snprintf(entry, sizeof(entry), "A%u=", i < 500 ? i : 499);
		job.spank_job_env[job.spank_job_env_size++] = strdup(entry);
	}
	start = cpu_ms();
	CHECK(job_submit(&job, A_USER, &err) == SLURM_SUCCESS && !err && job.spank_job_env_size == 500);
	CHECK(cpu_ms() - start < 1000);
	clear(&job);
}

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(24, 11, 0)
/* CARMA's programs write their part of a job's extra alone; the user's own stays. */
static void change_extra(const char *was, const char *to, const char *want)
{
	job_desc_msg_t of, job;
	job_record_t *record;

	empty(&of);
	of.extra = was ? strdup(was) : NULL;
	add_spank(&of, "SPANK_CARMA_V=1");
	record = record_of(&of);
	empty(&job);
	job.extra = strdup(to);
	CHECK(MODIFY(&job, record, 0, NULL) == SLURM_SUCCESS && !strcmp(job.extra ? job.extra : "none", want));
	free(job.extra);
	job.extra = strdup(to);
	CHECK(MODIFY(&job, record, A_USER, NULL) == ESLURM_ACCESS_DENIED && !strcmp(job.extra, to));
	CHECK(MODIFY(&job, record, 7, NULL) == SLURM_SUCCESS); /* an operator */
	CHECK(!strcmp(job.extra ? job.extra : "none", want));
	clear(&job);
	clear(&of);
	free(record);
}

static void check_extra(void)
{
	job_desc_msg_t of, job;
	job_record_t *record;

	change_extra("carma1>=5|carma1u1>=5", "carma1>=7|carma1u1>=7", "carma1>=7|carma1u1>=7");
	change_extra("(a=1)&(carma1>=5|carma1u1>=5)", "carma1>=7|carma1u1>=7", "(a=1)&(carma1>=7|carma1u1>=7)");
	change_extra("((a=1)&(carma1>=1))&(carma1>=5)", "carma1>=7", "((a=1)&(carma1>=1))&(carma1>=7)");
	change_extra("(a=1)&(carma1>=5)", "carma", "a=1");
	change_extra("carma1>=5", "carma", "none");
	change_extra("a=1", "carmaall>=4", "(a=1)&(carmaall>=4)");
	change_extra(NULL, "carma1>=7", "carma1>=7");
	change_extra("(a=1)&(carma1>=5)", "b=2", "b=2"); /* an administrator's own */
	/* Of a job that has booked nothing it is its user's. */
	empty(&of);
	record = record_of(&of);
	empty(&job);
	job.extra = "a=1";
	CHECK(MODIFY(&job, record, A_USER, NULL) == SLURM_SUCCESS);
	job.extra = NULL;
	free(record);
}
#else
static void check_extra(void)
{
}
#endif

/* GPUs that are added to a job without a booking, in a partition of CARMA's or on the way there. */
static void check_added(void)
{
	static char plain[] = "plain", gpu[] = "plain,gpu";
	job_desc_msg_t of, job;
	job_record_t *record;

	if (!worker_manages("gpu")) /* there is no libcarma, which knows */
		return;
	record = record_of(&of);
	empty(&of);
	empty(&job);
	of.partition = plain;
	job.tres_per_node = GRES "gpu:1";
	CHECK(MODIFY(&job, record, A_USER, NULL) == SLURM_SUCCESS);
	job.partition = gpu;
	CHECK(MODIFY(&job, record, A_USER, NULL) == ESLURM_ACCESS_DENIED);
	CHECK(MODIFY(&job, record, 0, NULL) == SLURM_SUCCESS);
	job.partition = NULL;
	of.partition = gpu;
	CHECK(MODIFY(&job, record, A_USER, NULL) == ESLURM_ACCESS_DENIED);
	job.tres_per_node = GRES "x:1";
	CHECK(MODIFY(&job, record, A_USER, NULL) == SLURM_SUCCESS);
	job.tres_per_node = NULL;
	job.ntasks_per_tres = 1; /* slurmctld makes a GPU for each task of this */
	CHECK(MODIFY(&job, record, A_USER, NULL) == ESLURM_ACCESS_DENIED);
	CHECK(MODIFY(&job, record, 0, NULL) == SLURM_SUCCESS);
	free(record);
}

void check_modify(void)
{
	job_desc_msg_t job;

	change(NULL, false, false, false);
	check_added();
	change("", true, false, false);
	change("SPANK_CARMA_NODES=fixed", true, true, false);
	/* Where slurmctld does not say, the lists that may be about a booking. */
	empty(&job);
	job.tres_per_node = GRES "gpu:3";
	CHECK(MODIFY(&job, NULL, A_USER, NULL) == ESLURM_ACCESS_DENIED);
	job.tres_per_node = GRES "x:3";
	job.min_nodes = 1;
	CHECK(MODIFY(&job, NULL, A_USER, NULL) == SLURM_SUCCESS);
	check_repeated();
	check_extra();
}

/* With the switch file Slurm is as it was, but for bookings. */
void check_switch(void)
{
	job_desc_msg_t job;
	char path[4096];
	FILE *f;

	snprintf(path, sizeof(path), "%.*s/carma.disable", (int)(strrchr(getenv("CARMA_CONF"), '/') - getenv("CARMA_CONF")),
		 getenv("CARMA_CONF"));
	CHECK((f = fopen(path, "w")) && !fclose(f));
	while (!worker_is_off())
		nap();
	empty(&job);
	job.partition = "gpu-recovery";
	job.comment = "two\nlines";
	taken(&job, A_USER);
	job.tres_per_node = GRES "gpu:1," GRES "carma:1";
	CHECK(MODIFY(&job, NULL, A_USER, NULL) == ESLURM_ACCESS_DENIED);
	CHECK(!unlink(path));
	while (worker_is_off())
		nap();
}

/* With mode = "advise" a job has a comment more, and nothing else of it changes or is refused. */
void check_advised(const char *script)
{
	job_desc_msg_t job, of;
	job_record_t *record;
	char *err = NULL;

	for (int tries = 0;; tries++) {
		CHECK(submit(&job, script, &err) == SLURM_SUCCESS && !err && tries < 1000);
		CHECK(!strcmp(job.tres_per_node, GRES "gpu:1") && !job.tres_per_job && !job.extra && !job.spank_job_env_size);
		CHECK(job.time_limit == NO_VAL && job.requeue == NO_VAL16 && !job.warn_signal && job.num_tasks == NO_VAL);
		if (job.admin_comment) /* answered in time */
			break;
		clear(&job);
		nap();
	}
	CHECK(strstr(job.admin_comment, "carma-advice={") == job.admin_comment && strstr(job.admin_comment, "\"est_mib\":10240"));
	clear(&job);
	empty(&job);
	job.partition = strdup("gpu-recovery");
	job.comment = strdup("two\nlines");
	CHECK(job_submit(&job, A_USER, &err) == SLURM_SUCCESS && !err);
	clear(&job);
	record = record_of(&of);
	empty(&of);
	empty(&job);
	job.partition = "gpu";
	job.tres_per_node = GRES "gpu:1";
	CHECK(MODIFY(&job, record, A_USER, NULL) == SLURM_SUCCESS);
	free(record);
}

/* What slurmctld cannot merge does not stay, so that it can be asked for the rest:
 * its stand-in checks that no more is written than there is room for. */
void check_spank(const char *script)
{
	job_desc_msg_t job;
	job_record_t *record;
	char longest[300], *err = NULL;

	for (int tries = 0;; tries++) {
		empty(&job);
		memset(longest, 'n', sizeof(longest));
		memcpy(longest + 254, "=1", 3);
		add_spank(&job, longest);
		memset(longest, 'm', sizeof(longest));
		memcpy(longest + 255, "=1", 3);
		add_spank(&job, longest);
		for (int i = 0; i < 1000; i++) {
			add_spank(&job, "A=1");
			add_spank(&job, "no value");
			add_spank(&job, "=no name");
			snprintf(longest, sizeof(longest), "N%d=%d", i, i);
			add_spank(&job, longest);
		}
		job.partition = strdup("gpu");
		job.tres_per_node = strdup(GRES "gpu:1");
		job.script = strdup(script);
		CHECK(job_submit(&job, A_USER, &err) == SLURM_SUCCESS && tries < 1000);
		if (!err)
			break;
		CHECK(strstr(err, "whole GPUs")); /* a library without a processor, as in check_annotate() */
		free(err);
		err = NULL;
		clear(&job);
		nap();
	}
	CHECK(!strcmp(spank(&job, "A"), "1") && !strcmp(spank(&job, "N500"), "500") && !spank(&job, "N511"));
	record = record_of(&job);
	CHECK(record_booking(record) == (spank(&job, "CARMA_V") ? BOOKED : NO_BOOKING));
	free(record);
	clear(&job);
}
