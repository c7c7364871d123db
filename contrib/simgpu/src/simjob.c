/* SPDX-License-Identifier: Apache-2.0 */
/* simjob: stands in for a training process on the simulated GPUs. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "nap.h"
#include "pool.h"
#include "units.h"

#define RAMP_STEPS 32
#define POLL_SECONDS 0.05 /* real: how late news of a neighbour or of an MPS fault may be */

struct job {
	uint64_t mem, spike;
	double spike_for, ramp, startup, duration;
	double smact; /* 0 to 1 */
	uint32_t gpus;
	enum framework framework;
	double fraction;
	const char *checkpoint;
	bool queued, verbose;
};

struct run {
	const struct job *job;
	struct sim *sim;
	struct sim_snap *snap;
	int signals;
	double started, joined;
	struct cuda cuda;
	struct pool pool;
	uint64_t bytes, peak;
	double ends; /* predicted */
	double share; /* of the work done when last looked */
	int told;     /* tenths that --verbose has printed */
};

static void usage(FILE *to)
{
	fprintf(to,
		"Usage: simjob --mem SIZE --smact PERCENT --duration TIME [option...]\n"
		"A stand-in for a training process on the GPUs of $SIMGPU_STATE.\n\n"
		"  --mem SIZE          GPU memory per GPU, such as 12G\n"
		"  --smact PERCENT     SM activity when alone, 1 to 100\n"
		"  --duration TIME     run time when alone on its GPU, such as 30s\n"
		"  --spike SIZE:TIME   hold that much first, for that long\n"
		"  --ramp TIME         grow to the first peak over that time\n"
		"  --startup TIME      run on the CPU first\n"
		"  --gpus N            use the first N visible GPUs (1)\n"
		"  --framework NAME    pytorch, tensorflow, jax, vllm or cuda: whose errors to print (pytorch), and\n"
		"                      who takes memory at its start: jax and tensorflow as their variables say\n"
		"  --fraction PART     of the GPU that vllm takes (0.9)\n"
		"  --checkpoint FILE   on SIGUSR1 append a line to FILE and go on\n"
		"  --queued            keep kernels queued: an end before they have run is a fault of the MPS server's clients\n"
		"  --verbose           print every 10 percent of progress\n\n"
		"Times are simulated: the state's time scale divides them.\n");
}

static int bad(const char *option, const char *value)
{
	fprintf(stderr, "simjob: --%s: cannot use '%s'; see simjob --help\n", option, value);
	return 2;
}

static bool parse_spike(const char *text, struct job *job)
{
	char copy[64], *colon;

	snprintf(copy, sizeof(copy), "%s", text);
	colon = strchr(copy, ':');
	if (colon == NULL)
		return false;
	*colon = '\0';
	return parse_bytes(copy, &job->spike) && parse_seconds(colon + 1, &job->spike_for);
}

static bool parse_option(int key, const char *v, struct job *job)
{
	double percent;
	long n;

	switch (key) {
	case 'm':
		return parse_bytes(v, &job->mem) && job->mem > 0;
	case 's':
		if (!parse_double(v, 0.01, 100.0, &percent))
			return false;
		job->smact = percent / 100.0;
		return true;
	case 'd':
		return parse_seconds(v, &job->duration) && job->duration > 0.0;
	case 'k':
		return parse_spike(v, job);
	case 'r':
		return parse_seconds(v, &job->ramp);
	case 'u':
		return parse_seconds(v, &job->startup);
	case 'g':
		if (!parse_long(v, 1, SIM_MAX_GPUS, &n))
			return false;
		job->gpus = (uint32_t)n;
		return true;
	case 'f':
		return framework_parse(v, &job->framework);
	case 'p':
		return parse_double(v, 0.01, 1.0, &job->fraction);
	case 'c':
		job->checkpoint = v;
		return true;
	case 'q':
		job->queued = true;
		return true;
	default:
		job->verbose = true;
		return true;
	}
}

/* 0 to go on; else 1 + exit status. */
static int parse(int argc, char **argv, struct job *job)
{
	static const struct option options[] = {
		{ "mem", 1, NULL, 'm' },	{ "smact", 1, NULL, 's' },	{ "duration", 1, NULL, 'd' },
		{ "spike", 1, NULL, 'k' },	{ "ramp", 1, NULL, 'r' },	{ "startup", 1, NULL, 'u' },
		{ "gpus", 1, NULL, 'g' },	{ "framework", 1, NULL, 'f' }, { "checkpoint", 1, NULL, 'c' },
		{ "fraction", 1, NULL, 'p' },	{ "queued", 0, NULL, 'q' },	{ "verbose", 0, NULL, 'v' },	{ "help", 0, NULL, 'h' },	{ NULL, 0, NULL, 0 },
	};
	int key, index = 0;

	*job = (struct job){ .gpus = 1, .fraction = 0.9 };
	while ((key = getopt_long(argc, argv, "", options, &index)) != -1) {
		if (key == 'h') {
			usage(stdout);
			return 1;
		}
		if (key == '?')
			return 3;
		if (!parse_option(key, optarg, job))
			return 1 + bad(options[index].name, optarg);
	}
	if (optind < argc || job->mem == 0 || job->smact == 0.0 || job->duration == 0.0) {
		fprintf(stderr, "simjob: --mem, --smact and --duration are needed, and nothing but options\n");
		return 3;
	}
	if (job->spike != 0 && job->spike < job->mem)
		return 1 + bad("spike", "less than --mem");
	return 0;
}

static uint64_t peak_of(const struct job *job)
{
	return job->spike != 0 ? job->spike : job->mem;
}

/* Memory at t seconds after the start on the GPU; *next is when it changes, or never (a large number). */
static uint64_t memory_at(const struct job *job, double t, double *next)
{
	uint64_t peak = peak_of(job);

	if (t < job->ramp) {
		int step = (int)(t / job->ramp * RAMP_STEPS) + 1;

		*next = step < RAMP_STEPS ? step * job->ramp / RAMP_STEPS : job->ramp;
		return step < RAMP_STEPS ? peak / RAMP_STEPS * (uint64_t)step : peak;
	}
	if (job->spike != 0 && t < job->ramp + job->spike_for) {
		*next = job->ramp + job->spike_for;
		return peak;
	}
	*next = 1e18;
	return job->mem;
}

static void write_checkpoint(const struct run *r, double now)
{
	FILE *f = fopen(r->job->checkpoint, "ae");
	bool written = f != NULL && fprintf(f, "checkpoint %.1f s %.1f %%\n", now - r->started, r->share * 100.0) >= 0;

	if ((f != NULL && fclose(f) != 0) || !written)
		fprintf(stderr, "simjob: cannot write checkpoint %s: %s\n", r->job->checkpoint, strerror(errno));
}

/* Ends the process when the signal says so; SIGUSR1 is only a request. */
static void obey(struct run *r, int sig, bool joined)
{
	if (sig == SIGUSR1) {
		write_checkpoint(r, sim_now(r->sim));
		return;
	}
	if (joined)
		client_leave(r->sim, r->cuda.slot);
	exit(128 + sig);
}

static void pause_until(struct run *r, double until, bool joined)
{
	double real;

	while ((real = (until - sim_now(r->sim)) / sim_scale(r->sim)) > 0.0) {
		int sig = nap(r->signals, joined && real > POLL_SECONDS ? POLL_SECONDS : real, -1);

		if (sig != 0)
			obey(r, sig, joined);
		if (joined)
			return;
	}
}

static void refused(struct run *r, enum client_result result, const struct client_refusal *why)
{
	sim_read(r->sim, r->snap);
	client_leave(r->sim, r->cuda.slot);
	if (result == CLIENT_NOT_READY) {
		fprintf(stderr, "simjob: this process is no longer in the state: was it reset?\n");
		exit(1);
	}
	exit(framework_oom(r->job->framework, r->snap, why, r->cuda.unit[why->use]));
}

/* What the program needs; what the process holds is more where a framework keeps what it once had. */
static void resize_to(struct run *r, uint64_t bytes)
{
	struct client_refusal why = { .requested = bytes - r->bytes };
	uint64_t held = bytes > r->pool.held ? bytes : r->pool.held;
	enum client_result result = CLIENT_LIMIT_OOM;

	if (bytes <= r->pool.most)
		result = client_resize(r->sim, r->cuda.slot, held, &why);
	if (result != CLIENT_OK)
		refused(r, result, &why);
	r->bytes = bytes;
	r->peak = held > r->peak ? held : r->peak;
	if (r->pool.keeps)
		r->pool.held = held;
}

/* What the framework takes before the program has asked for anything. */
static int take_pool(struct run *r)
{
	const struct sim_proc *me;
	uint64_t total, left;
	struct client_refusal why;
	int rc;

	sim_read(r->sim, r->snap);
	me = snap_by_slot(r->snap, r->cuda.slot);
	if (me == NULL)
		return 0; /* the first look says so */
	client_memory(r->snap, me, &left, &total);
	rc = pool_plan(r->job->framework, r->job->fraction, peak_of(r->job), total, left, &r->pool);
	if (rc != 0)
		return rc;
	while (r->pool.held > 0 && client_resize(r->sim, r->cuda.slot, r->pool.held, &why) != CLIENT_OK)
		if (!pool_back_off(r->job->framework, &r->pool))
			r->pool.held = 0;
	r->peak = r->pool.held;
	return 0;
}

/* Late or not, memory grows step by step: what is refused does not depend on how fast the machine is. */
static void set_memory(struct run *r, uint64_t bytes)
{
	uint64_t step = r->job->ramp > 0.0 ? peak_of(r->job) / RAMP_STEPS + 1 : bytes;

	while (r->bytes + step < bytes)
		resize_to(r, r->bytes + step - 1);
	resize_to(r, bytes);
}

static void obey_stop(struct run *r, uint32_t stop)
{
	static const enum cuda_error error[] = {
		[SIM_STOP_FAULT] = CUDA_ILLEGAL_ADDRESS,
		[SIM_STOP_TERMINATED] = CUDA_MPS_CLIENT_TERMINATED,
		[SIM_STOP_SERVER_GONE] = CUDA_MPS_RPC_FAILURE,
	};

	if (stop == SIM_RUN)
		return;
	client_leave(r->sim, r->cuda.slot);
	exit(framework_cuda_error(r->job->framework, error[stop]));
}

/* Looks at the state: stop, progress, predicted end. True when the work is done. */
static bool look(struct run *r)
{
	static double rate[SIM_MAX_PROCS];

	sim_read(r->sim, r->snap);
	const struct sim_proc *me = snap_by_slot(r->snap, r->cuda.slot);

	if (me == NULL) {
		fprintf(stderr, "simjob: this process is no longer in the state: was it reset?\n");
		exit(1);
	}
	obey_stop(r, me->stop);
	r->share = me->work / me->target;
	for (; r->job->verbose && r->share * 10.0 >= r->told + 1; r->told++)
		printf("simjob: %d %%\n", (r->told + 1) * 10);
	fflush(stdout);
	if (me->ended != 0.0) {
		r->ends = me->ended;
		return true;
	}
	snap_load(r->snap, NULL, rate);
	r->ends = r->snap->now + (me->target - me->work) / rate[me - r->snap->proc];
	return false;
}

static void train(struct run *r)
{
	uint32_t generation = sim_generation(r->sim) - 1;
	double change = 0.0;

	for (;;) {
		double now = sim_now(r->sim);
		uint32_t g = sim_generation(r->sim);

		sim_beat(r->sim, r->cuda.slot);
		sim_reap(r->sim, 2 * POLL_SECONDS);
		if (now - r->joined >= change) {
			uint64_t bytes = memory_at(r->job, now - r->joined, &change);

			if (bytes != r->bytes)
				set_memory(r, bytes);
		}
		if (g != generation || now >= r->ends || r->job->verbose) {
			if (look(r))
				return;
			generation = g;
		}
		double next = r->joined + change;

		pause_until(r, next < r->ends ? next : r->ends, true);
	}
}

int main(int argc, char **argv)
{
	static const int stop[] = { SIGTERM, SIGINT, SIGUSR1, 0 }, stop_only[] = { SIGTERM, SIGINT, 0 };
	struct job job;
	struct run r = { .job = &job };
	int rc = parse(argc, argv, &job);

	if (rc != 0)
		return rc - 1;
	r.signals = nap_open(job.checkpoint != NULL ? stop : stop_only);
	r.sim = sim_open(NULL);
	r.snap = malloc(sizeof(*r.snap));
	if (r.sim == NULL || r.snap == NULL || r.signals < 0) {
		fprintf(stderr, "simjob: %s\n", r.sim == NULL ? sim_error() : strerror(errno));
		return 1;
	}
	r.started = sim_now(r.sim);
	pause_until(&r, r.started + job.startup, false);

	struct sim_proc p = { .kind = SIM_JOB, .demand = job.smact, .target = job.duration, .queues = job.queued };

	snprintf(p.name, sizeof(p.name), "%s", program_invocation_short_name);
	rc = cuda_open(r.sim, &p, job.gpus, r.signals, &r.cuda);
	if (rc < 0)
		return 128 - rc;
	if (rc > 0)
		return framework_cuda_error(job.framework, (enum cuda_error)rc);
	r.joined = sim_now(r.sim);
	rc = take_pool(&r);
	if (rc != 0) {
		client_leave(r.sim, r.cuda.slot);
		return rc;
	}
	train(&r);
	client_leave(r.sim, r.cuda.slot);
	printf("simjob: done wall_s=%.1f alone_s=%.1f peak_mib=%llu\n", r.ends - r.started, job.duration,
	       (unsigned long long)(r.peak / MIB));
	return 0;
}
