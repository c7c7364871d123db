/* SPDX-License-Identifier: Apache-2.0 */
/* dcgmi, the stand-in: dmon and discovery -l, in the form of DCGM 3 and 4. */
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nap.h"
#include "state.h"
#include "units.h"

#define MAX_FIELDS 32
#define HEADER_EVERY 15 /* rows of output between headers */

/* What a field is made from: values over the last interval, or of the moment. */
struct reading {
	double smact, resident; /* means over the interval; NAN in the first row */
	double power, joules, util, celsius;
	double used_mib, free_mib, total_mib;
};

struct field {
	long id;
	const char *name, *unit;
	int digits; /* after the point; fractions have three */
};

/* Identifiers and short names of dcgm_fields.h. Those without a value here print N/A, as on a GPU that lacks them. */
static const struct field fields[] = {
	{ 150, "TMPTR", "C", 0 },   { 155, "POWER", "W", 3 },  { 156, "TOTEC", "mJ", 0 }, { 203, "GPUTL", "", 0 },
	{ 204, "MCUTL", "", 0 },    { 250, "FBTTL", "MB", 0 }, { 251, "FBFRE", "MB", 0 }, { 252, "FBUSD", "MB", 0 },
	{ 1001, "GRACT", "", 3 },   { 1002, "SMACT", "", 3 },  { 1003, "SMOCC", "", 3 },  { 1004, "TENSO", "", 3 },
	{ 1005, "DRAMA", "", 3 },   { 1006, "FP64A", "", 3 },  { 1007, "FP32A", "", 3 },  { 1008, "FP16A", "", 3 },
	{ 1009, "PCITX", "", 0 },   { 1010, "PCIRX", "", 0 },  { 1011, "NVLTX", "", 0 },  { 1012, "NVLRX", "", 0 },
};

static double field_value(long id, const struct reading *r)
{
	switch (id) {
	case 150:
		return r->celsius;
	case 155:
		return r->power;
	case 156:
		return floor(r->joules * 1e3);
	case 203:
		return r->util;
	case 204:
		return 100.0 * LAW_DRAM_PER_SMACT * r->util / 125.0;
	case 250:
		return r->total_mib;
	case 251:
		return r->free_mib;
	case 252:
		return r->used_mib;
	case 1001:
		return r->resident;
	case 1002:
		return r->smact;
	case 1003:
		return LAW_OCCUPANCY_PER_SMACT * r->smact;
	case 1005:
		return LAW_DRAM_PER_SMACT * r->smact;
	default:
		return NAN;
	}
}

/* Reads one GPU; the integrals of the row before are in last[2] and are replaced. */
static struct reading read_gpu(const struct sim_snap *s, uint32_t g, double before, double last[2])
{
	static struct law_load load[SIM_MAX_UNITS];
	const struct model *m = model_get(s->model);
	const struct sim_gpu *gpu = &s->gpu[g];
	struct reading r = { 0 };
	double now[2] = { 0.0, 0.0 }, idle = 1.0;

	snap_load(s, load, NULL);
	for (uint32_t u = gpu->first_unit; u < gpu->first_unit + gpu->units; u++) {
		now[0] += s->unit[u].smact * s->unit[u].share;
		now[1] += s->unit[u].resident * s->unit[u].share;
		idle *= 1.0 - load[u].resident;
	}
	double smact = snap_gpu_smact(s, g, load);

	r.smact = before < 0.0 ? NAN : (now[0] - last[0]) / (s->now - before);
	r.resident = before < 0.0 ? NAN : (now[1] - last[1]) / (s->now - before);
	memcpy(last, now, sizeof(now));
	if (gpu->fault == SIM_ZERO_SMACT && before >= 0.0)
		r.smact = r.resident = 0.0;
	r.power = model_power(m, smact);
	r.joules = gpu->joules;
	r.util = round(100.0 * (1.0 - idle));
	r.celsius = round(30.0 + 40.0 * smact);
	r.total_mib = m->total_mib;
	r.used_mib = (double)(snap_gpu_used(s, g) / MIB);
	r.free_mib = r.total_mib - m->reserved_mib - r.used_mib;
	return r;
}

static void print_header(const struct field *const *f, int n)
{
	printf("%-10s", "#Entity");
	for (int i = 0; i < n; i++)
		printf("%-13s", f[i]->name);
	printf("\n%-10s", "ID");
	for (int i = 0; i < n; i++)
		printf("%-13s", f[i]->unit);
	printf("\n");
}

static void print_row(const struct sim_snap *s, uint32_t g, const struct reading *r, const struct field *const *f, int n)
{
	bool broken = s->gpu[g].fault == SIM_LOST || s->gpu[g].fault == SIM_ERROR;
	char name[16];

	snprintf(name, sizeof(name), "GPU %u", g);
	printf("%-10s", name);
	for (int i = 0; i < n; i++) {
		double v = field_value(f[i]->id, r);

		if (broken || isnan(v))
			printf("%-13s", "N/A");
		else
			printf("%-13.*f", f[i]->digits, v);
	}
	printf("\n");
}

static int bad(const char *what, const char *value)
{
	fprintf(stderr, "Error: %s: %s\n", what, value);
	return 1;
}

/* "1002,1003": how many, or -1 with a message. */
static int parse_fields(char *text, const struct field **out)
{
	char *save = NULL;
	int n = 0;

	for (char *item = strtok_r(text, ",", &save); item != NULL; item = strtok_r(NULL, ",", &save)) {
		const struct field *found = NULL;
		long id;

		for (size_t i = 0; parse_long(item, 0, 65535, &id) && i < sizeof(fields) / sizeof(fields[0]); i++)
			if (fields[i].id == id)
				found = &fields[i];
		if (found == NULL || n == MAX_FIELDS) {
			bad("Unknown Field ID", item);
			return -1;
		}
		out[n++] = found;
	}
	return n;
}

static bool parse_gpus(char *text, uint32_t gpus, bool wanted[])
{
	char *save = NULL;

	memset(wanted, text == NULL, SIM_MAX_GPUS);
	for (char *item = text == NULL ? NULL : strtok_r(text, ",", &save); item != NULL;
	     item = strtok_r(NULL, ",", &save)) {
		long g;

		if (!parse_long(item, 0, (long)gpus - 1, &g))
			return false;
		wanted[g] = true;
	}
	return true;
}

static bool hangs(const struct sim_snap *s)
{
	for (uint32_t g = 0; g < s->gpus; g++)
		if (s->gpu[g].fault == SIM_HANG && (s->gpu[g].fault_until == 0.0 || s->now < s->gpu[g].fault_until))
			return true;
	return false;
}

static int dmon(struct sim *sim, int argc, char **argv)
{
	static const int stop[] = { SIGINT, SIGTERM, 0 };
	static struct sim_snap s;
	static double last[SIM_MAX_GPUS][2];
	const struct field *f[MAX_FIELDS];
	char *gpus = NULL;
	bool wanted[SIM_MAX_GPUS];
	long delay = 1000, count = 0;
	double before = -1.0;
	int key, n = 0, sig = 0;

	while ((key = getopt(argc, argv, "e:d:c:i:")) != -1) {
		if (key == '?' || (key == 'e' && (n = parse_fields(optarg, f)) < 0))
			return 1;
		if ((key == 'd' && !parse_long(optarg, 1, 3600000, &delay)) ||
		    (key == 'c' && !parse_long(optarg, 0, 1L << 30, &count)))
			return bad("Invalid value", optarg);
		if (key == 'i')
			gpus = optarg;
	}
	sim_read(sim, &s);
	if (n == 0)
		return bad("Either field group ID or a list of field IDs must be provided", "dmon -e IDS");
	if (!parse_gpus(gpus, s.gpus, wanted))
		return bad("Invalid GPU in", "-i");

	int signals = nap_open(stop);

	/* A pipe gets each row at once, as from the real one. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	print_header(f, n);
	for (long row = 0; sig == 0; row++) {
		do {
			sim_reap(sim, 0.0);
			sim_tell(sim, &s);
		} while (hangs(&s) && (sig = nap(signals, 0.02, -1)) == 0);
		for (uint32_t g = 0; sig == 0 && g < s.gpus; g++) {
			struct reading r = read_gpu(&s, g, before, last[g]);

			r.joules /= sim_scale(sim); /* as NVML's */
			if (wanted[g])
				print_row(&s, g, &r, f, n);
		}
		before = s.now;
		if (count > 0 && row + 1 == count)
			return ferror(stdout) != 0;
		sig = nap(signals, (double)delay / 1e3, -1);
		if (sig == 0 && row % HEADER_EVERY == HEADER_EVERY - 1)
			print_header(f, n);
		if (ferror(stdout))
			return 1;
	}
	printf("\n\ndmon was stopped do to receiving a signal\n");
	return 0;
}

static int discovery(struct sim *sim)
{
	static const char rule[] = "+--------+----------------------------------------------------------------------+\n";
	static struct sim_snap s;
	char line[96];

	sim_read(sim, &s);
	printf("%u GPU%s found.\n%s| GPU ID | %-68s |\n%s", s.gpus, s.gpus == 1 ? "" : "s", rule, "Device Information", rule);
	for (uint32_t g = 0; g < s.gpus; g++) {
		snprintf(line, sizeof(line), "Name: %s", model_get(s.model)->name);
		printf("| %-6u | %-68s |\n", g, line);
		snprintf(line, sizeof(line), "PCI Bus ID: 00000000:%02X:00.0", model_pci_bus(g));
		printf("|        | %-68s |\n", line);
		snprintf(line, sizeof(line), "Device UUID: %s", s.gpu[g].uuid);
		printf("|        | %-68s |\n%s", line, rule);
	}
	return 0;
}

int main(int argc, char **argv)
{
	const char *cmd = argc > 1 ? argv[1] : "";

	if (strcmp(cmd, "--version") == 0) {
		printf("\ndcgmi  version: 4.2.3\n\nSimulated by simgpu.\n");
		return 0;
	}
	bool list = strcmp(cmd, "discovery") == 0 && argc == 3 && strcmp(argv[2], "-l") == 0;

	if (!list && strcmp(cmd, "dmon") != 0) {
		fprintf(stderr, "Usage: dcgmi dmon -e IDS [-d MS] [-c COUNT] [-i GPUS]\n"
				"       dcgmi discovery -l\n"
				"       dcgmi --version\n");
		return 1;
	}
	struct sim *sim = sim_open(NULL);

	if (sim == NULL) {
		fprintf(stderr, "Error: unable to establish a connection to the specified host: localhost\n"
				"Error: Unable to connect to host engine. Host engine connection invalid/disconnected. (%s)\n",
			sim_error());
		return 1;
	}
	return list ? discovery(sim) : dmon(sim, argc - 1, argv + 1);
}
