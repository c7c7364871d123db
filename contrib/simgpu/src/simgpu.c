/* SPDX-License-Identifier: Apache-2.0 */
/* simgpu: makes a state of simulated GPUs, looks at it, and injects faults. */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "device.h"
#include "nap.h"
#include "show.h"
#include "units.h"
#include "visible.h"

static void usage(FILE *to)
{
	fprintf(to,
		"Usage: simgpu COMMAND [argument...]\n\n"
		"  create STATE --model dgx-a100|h100|h200 [--gpus N] [--time-scale X] [--mig GPU=PROFILE,...]\n"
		"  show [--json]\n"
		"  fault GPU hang[:SECONDS]|lost|error=NVML_CODE|garbage-pids|garbage-memory|silent-gpm|nan-gpm|\n"
		"            zero-smact|no-activity|no-shares|no-limits|xid=CODE|rows=pending|rows=failure|\n"
		"            recovery=ACTION|none\n"
		"  foreign GPU --mem SIZE [--smact PERCENT] [--duration TIME]\n"
		"  reset GPU\n"
		"  mps-fault GPU\n"
		"  devices DIR\n\n"
		"All but create and devices work on the state that $SIMGPU_STATE names. GPU is an index or a UUID.\n");
}

static int fail(void)
{
	fprintf(stderr, "simgpu: %s\n", sim_error());
	return 1;
}

static int misuse(const char *what, const char *value)
{
	fprintf(stderr, "simgpu: %s '%s'; see simgpu --help\n", what, value);
	return 2;
}

/* "0=3g.20gb,0=3g.20gb,1=7g.40gb": how many, or -1. */
static int parse_mig(char *text, const struct model *m, uint32_t gpus, struct sim_mig *mig)
{
	char *save = NULL;
	int n = 0;

	for (char *item = strtok_r(text, ",", &save); item != NULL; item = strtok_r(NULL, ",", &save)) {
		char *eq = strchr(item, '=');
		long gpu;

		if (eq == NULL || n == SIM_MAX_UNITS)
			return -1;
		*eq = '\0';
		mig[n].profile = model_mig(m, eq + 1);
		if (mig[n].profile == NULL || !parse_long(item, 0, (long)gpus - 1, &gpu))
			return -1;
		mig[n++].gpu = (uint32_t)gpu;
	}
	return n;
}

static int cmd_create(int argc, char **argv)
{
	static const struct option options[] = { { "model", 1, NULL, 'm' },	 { "gpus", 1, NULL, 'g' },
						 { "time-scale", 1, NULL, 't' }, { "mig", 1, NULL, 'i' },
						 { NULL, 0, NULL, 0 } };
	static struct sim_mig mig[SIM_MAX_UNITS];
	const struct model *m = NULL;
	char *mig_text = NULL;
	long gpus = 0;
	double scale = 1.0;
	int key, migs = 0;

	while ((key = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (key == 'm' && (m = model_find(optarg)) == NULL)
			return misuse("there is no model", optarg);
		if (key == 'g' && !parse_long(optarg, 1, SIM_MAX_GPUS, &gpus))
			return misuse("--gpus: between 1 and 16, not", optarg);
		if (key == 't' && !parse_double(optarg, 0.001, 100000.0, &scale))
			return misuse("--time-scale: between 0.001 and 100000, not", optarg);
		if (key == 'i')
			mig_text = optarg;
		if (key == '?')
			return 2;
	}
	if (m == NULL || optind + 1 != argc)
		return misuse("create: one STATE and --model are needed, near", argv[argc - 1]);
	if (gpus == 0)
		gpus = m->gpus;
	if (mig_text != NULL && (migs = parse_mig(mig_text, m, (uint32_t)gpus, mig)) < 0)
		return misuse("--mig: GPU=PROFILE of this model, not", mig_text);
	return sim_create(argv[optind], m, (uint32_t)gpus, scale, mig, migs) == 0 ? 0 : fail();
}

static struct sim_snap *read_state(struct sim *sim)
{
	struct sim_snap *s = malloc(sizeof(*s));

	if (s == NULL) {
		sim_fail("out of memory");
		return NULL;
	}
	sim_reap(sim, 0.0);
	sim_tell(sim, s);
	return s;
}

static int cmd_show(struct sim *sim, int argc, char **argv)
{
	struct sim_snap *s;

	if (argc > 2 || (argc == 2 && strcmp(argv[1], "--json") != 0))
		return misuse("show: unknown argument", argv[argc - 1]);
	if ((s = read_state(sim)) == NULL)
		return fail();
	if (argc == 2)
		show_json(s, sim_scale(sim));
	else
		show_table(s);
	free(s);
	return 0;
}

/* The unit that a GPU argument names, or -1. */
static int find_unit(const struct sim_snap *s, const char *text)
{
	int base[SIM_MAX_GPUS], unit[SIM_MAX_GPUS];

	if (visible_units(s, base, visible_all(s, base), text, unit) == 1)
		return unit[0];
	return sim_fail("there is no GPU '%s'", text);
}

static bool parse_fault(const char *text, double now, struct sim_gpu *g)
{
	static const struct {
		const char *text;
		enum sim_fault fault;
	} plain[] = { { "none", SIM_OK },
		      { "hang", SIM_HANG },
		      { "lost", SIM_LOST },
		      { "garbage-pids", SIM_GARBAGE_PIDS },
		      { "garbage-memory", SIM_GARBAGE_MEMORY },
		      { "silent-gpm", SIM_SILENT_GPM },
		      { "nan-gpm", SIM_NAN_GPM },
		      { "zero-smact", SIM_ZERO_SMACT },
		      { "no-activity", SIM_NO_ACTIVITY },
		      { "no-shares", SIM_NO_SHARES },
		      { "no-limits", SIM_NO_LIMITS } };
	double seconds;
	long code;

	/* These stand beside another fault. */
	if (strncmp(text, "xid=", 4) == 0 && parse_long(text + 4, 1, 999, &code)) {
		g->xid[g->xids++ % SIM_XIDS] = (uint32_t)code;
		return true;
	}
	if (strncmp(text, "recovery=", 9) == 0 && parse_long(text + 9, 0, 99, &code)) {
		g->recovery = (uint32_t)code;
		return true;
	}
	if (strcmp(text, "rows=pending") == 0 || strcmp(text, "rows=failure") == 0) {
		g->rows = text[5] == 'p' ? SIM_ROWS_PENDING : SIM_ROWS_FAILED;
		return true;
	}
	if (strcmp(text, "none") == 0)
		g->rows = g->recovery = 0;
	g->fault_until = 0.0;
	g->fault_code = 0;
	for (unsigned i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
		if (strcmp(text, plain[i].text) == 0) {
			g->fault = plain[i].fault;
			return true;
		}
	}
	if (strncmp(text, "hang:", 5) == 0 && parse_seconds(text + 5, &seconds)) {
		g->fault = SIM_HANG;
		g->fault_until = now + seconds;
		return true;
	}
	if (strncmp(text, "error=", 6) == 0 && parse_long(text + 6, 1, 999, &code)) {
		g->fault = SIM_ERROR;
		g->fault_code = (int32_t)code;
		return true;
	}
	return false;
}

static int cmd_fault(struct sim *sim, const char *gpu, const char *text)
{
	struct sim_snap *s = sim_begin(sim);
	int unit = find_unit(s, gpu);

	if (unit < 0) {
		sim_abort(sim);
		return fail();
	}
	if (!parse_fault(text, s->now, &s->gpu[s->unit[unit].gpu])) {
		sim_abort(sim);
		return misuse("there is no fault", text);
	}
	sim_commit(sim, false);
	return 0;
}

static int cmd_reset(struct sim *sim, const char *gpu)
{
	sim_reap(sim, 0.0);
	struct sim_snap *s = sim_begin(sim);
	int unit = find_unit(s, gpu), users = 0;

	for (uint32_t i = 0; unit >= 0 && i < s->procs; i++)
		users += snap_on_gpu(s, &s->proc[i], s->unit[unit].gpu, NULL);
	if (users > 0)
		sim_fail("GPU %s is in use by %d processes: end them first", gpu, users);
	if (unit < 0 || users > 0) {
		sim_abort(sim);
		return fail();
	}
	struct sim_gpu *g = &s->gpu[s->unit[unit].gpu];

	g->fault = SIM_OK;
	g->rows = g->recovery = 0;
	g->compute_mode = SIM_SHARED;
	g->joules = 0.0;
	for (uint32_t u = g->first_unit; u < g->first_unit + g->units; u++)
		s->unit[u].smact = s->unit[u].resident = 0.0;
	sim_commit(sim, false);
	return 0;
}

/* As an illegal access of one client: its server goes to FAULT and all clients of the server get the error. */
static int cmd_mps_fault(struct sim *sim, const char *gpu)
{
	sim_reap(sim, 0.0);
	struct sim_snap *s = sim_begin(sim);
	int unit = find_unit(s, gpu), hit = 0;

	for (uint32_t i = 0; unit >= 0 && i < s->procs; i++) {
		struct sim_proc *p = &s->proc[i], *server = snap_by_pid(s, p->server);

		if (!snap_is_mps_client(p) || server == NULL || !snap_on_gpu(s, server, s->unit[unit].gpu, NULL))
			continue;
		server->faulted = 1; /* the server says so in its log, and ends the clients */
		hit++;
	}
	if (hit == 0) {
		if (unit >= 0)
			sim_fail("GPU %s has no MPS client", gpu);
		sim_abort(sim);
		return fail();
	}
	sim_commit(sim, true);
	return 0;
}

static const char *refusal(enum client_result r)
{
	switch (r) {
	case CLIENT_FULL:
		return "it has as many processes as can be simulated";
	case CLIENT_BUSY:
		return "its compute mode allows no further process";
	default:
		return "it has not that much free memory";
	}
}

/* A process on the GPU that is no job. */
static int cmd_foreign(struct sim *sim, int argc, char **argv)
{
	static const int stop[] = { SIGTERM, SIGINT, 0 };
	static const struct option options[] = {
		{ "mem", 1, NULL, 'm' }, { "smact", 1, NULL, 's' }, { "duration", 1, NULL, 'd' }, { NULL, 0, NULL, 0 }
	};
	struct sim_proc p = { .kind = SIM_FOREIGN, .limit_pct = 100, .uses = 1, .name = "foreign" };
	struct client_refusal why;
	double percent = 0.0, seconds = 1e9;
	uint64_t bytes = 0;
	uint32_t slot;
	int key, sig = 0;

	while ((key = getopt_long(argc, argv, "", options, NULL)) != -1)
		if (key == '?' || (key == 'm' && !parse_bytes(optarg, &bytes)) ||
		    (key == 's' && !parse_double(optarg, 0.0, 100.0, &percent)) ||
		    (key == 'd' && !parse_seconds(optarg, &seconds)))
			return misuse("foreign: cannot use", optarg == NULL ? "that" : optarg);
	if (optind + 1 != argc)
		return misuse("foreign: one GPU is needed, not", argv[argc - 1]);
	struct sim_snap *s = read_state(sim);

	p.use[0].unit = s == NULL ? -1 : find_unit(s, argv[optind]);
	free(s);
	if (p.use[0].unit < 0)
		return fail();
	p.demand = percent / 100.0;

	int signals = nap_open(stop);
	enum client_result r = client_join(sim, &p, &slot);

	if (r == CLIENT_OK && (r = client_resize(sim, slot, bytes, &why)) != CLIENT_OK)
		client_leave(sim, slot);
	if (r != CLIENT_OK) {
		sim_fail("cannot use GPU %s: %s", argv[optind], refusal(r));
		return fail();
	}
	for (double end = sim_now(sim) + seconds; sig == 0 && sim_now(sim) < end;) {
		double real = (end - sim_now(sim)) / sim_scale(sim);

		sim_beat(sim, slot);
		sig = nap(signals, real < 0.05 ? real : 0.05, -1);
	}
	client_leave(sim, slot);
	return sig == 0 ? 0 : 128 + sig;
}

/* Prints the numbers of the device nodes in a directory that this process may open; "none" for none. */
static int cmd_devices(const char *dir)
{
	int opens = 0;

	for (uint32_t gpu = 0; gpu < SIM_MAX_GPUS; gpu++)
		if (device_open(dir, gpu) == DEVICE_OPENS)
			printf("%s%u", opens++ == 0 ? "" : ",", gpu);
	printf("%s\n", opens == 0 ? "none" : "");
	return 0;
}

int main(int argc, char **argv)
{
	const char *cmd = argc > 1 ? argv[1] : "";

	if (strcmp(cmd, "--help") == 0 || strcmp(cmd, "-h") == 0) {
		usage(stdout);
		return 0;
	}
	if (*cmd == '\0') {
		usage(stderr);
		return 2;
	}
	argc--, argv++;
	if (strcmp(cmd, "create") == 0)
		return cmd_create(argc, argv);
	if (strcmp(cmd, "devices") == 0 && argc == 2)
		return cmd_devices(argv[1]);

	bool show = strcmp(cmd, "show") == 0, foreign = strcmp(cmd, "foreign") == 0;
	bool fault = strcmp(cmd, "fault") == 0 && argc == 3, reset = strcmp(cmd, "reset") == 0 && argc == 2;
	bool mps_fault = strcmp(cmd, "mps-fault") == 0 && argc == 2;

	if (!show && !foreign && !fault && !reset && !mps_fault)
		return misuse("unknown command or wrong number of arguments:", cmd);
	struct sim *sim = sim_open(NULL);

	if (sim == NULL)
		return fail();
	if (show)
		return cmd_show(sim, argc, argv);
	if (foreign)
		return cmd_foreign(sim, argc, argv);
	if (fault)
		return cmd_fault(sim, argv[1], argv[2]);
	return reset ? cmd_reset(sim, argv[1]) : cmd_mps_fault(sim, argv[1]);
}
