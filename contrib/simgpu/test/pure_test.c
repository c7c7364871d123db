/* SPDX-License-Identifier: Apache-2.0 */
/* The laws, the integration of time, and the parsers: no files, no clock. */
#include <stdlib.h>

#include "check.h"
#include "mps.h"
#include "snapshot.h"
#include "units.h"
#include "visible.h"

static struct sim_snap s;

/* Two A100s without MIG. */
static void two_gpus(void)
{
	memset(&s, 0, sizeof(s));
	s.gpus = s.units = 2;
	for (uint32_t g = 0; g < 2; g++) {
		snprintf(s.gpu[g].uuid, sizeof(s.gpu[g].uuid), "GPU-%c0000000-0000", 'a' + (int)g);
		s.gpu[g].first_unit = g;
		s.gpu[g].units = 1;
		s.unit[g].gpu = g;
		s.unit[g].share = 1.0;
		s.unit[g].bytes = 40503 * MIB;
		snprintf(s.unit[g].uuid, sizeof(s.unit[g].uuid), "%s", s.gpu[g].uuid);
	}
}

static struct sim_proc *add(int pid, double demand, double target, int server, int unit)
{
	struct sim_proc *p = &s.proc[s.procs++];

	*p = (struct sim_proc){ .pid = pid, .slot = (uint32_t)pid, .demand = demand, .target = target,
				.server = server, .limit_pct = 100, .uses = 1 };
	p->use[0].unit = unit;
	return p;
}

static void test_law(void)
{
	struct law_client alone[] = { { 0.6, 0, 0 } };
	struct law_client mps[] = { { 0.6, 7, 0 }, { 0.5, 7, 0 } };
	struct law_client sliced[] = { { 0.6, 0, 0 }, { 0.5, 0, 0 } };
	struct law_client mixed[] = { { 0.6, 7, 0 }, { 0.5, 7, 0 }, { 0.9, 0, 0 } };
	struct law_load l = law_share(alone, 1);

	CHECK_NEAR(l.smact, 0.6, 1e-12);
	CHECK_NEAR(alone[0].rate, 1.0, 1e-12);
	CHECK_NEAR(l.resident, 0.75, 1e-12);
	l = law_share(mps, 2);
	CHECK_NEAR(l.smact, 0.8, 1e-12);
	CHECK_NEAR(mps[0].rate, 0.8 / 1.1, 1e-12);
	CHECK_NEAR(mps[1].rate, 0.8 / 1.1, 1e-12);
	CHECK_NEAR(l.resident, 1 - 0.25 * 0.375, 1e-12);
	/* SM work is conserved: sum of rate * demand is the combined activity. */
	CHECK_NEAR(mps[0].rate * 0.6 + mps[1].rate * 0.5, l.smact, 1e-12);
	l = law_share(sliced, 2);
	CHECK_NEAR(l.smact, 0.55, 1e-12);
	CHECK_NEAR(sliced[0].rate, 0.5, 1e-12);
	l = law_share(mixed, 3);
	CHECK_NEAR(l.smact, (0.8 + 0.9) / 2, 1e-12);
	CHECK_NEAR(mixed[0].rate, 0.8 / 1.1 / 2, 1e-12);
	CHECK_NEAR(mixed[2].rate, 0.5, 1e-12);
	l = law_share(NULL, 0);
	CHECK_NEAR(l.smact, 0.0, 0.0);
	CHECK_NEAR(law_resident(0.9), 1.0, 0.0);
}

static void test_power(void)
{
	const struct model *a100 = model_find("dgx-a100"), *h100 = model_find("h100");

	CHECK_NEAR(model_power(a100, 0.0), 58, 1e-9);
	CHECK_NEAR(model_power(a100, 0.175), (58 + 163) / 2.0, 1e-9);
	CHECK_NEAR(model_power(a100, 0.5), 204, 1e-9);
	CHECK_NEAR(model_power(a100, 1.0), 273, 1e-9);
	CHECK_NEAR(model_power(a100, 1.5), 273, 1e-9);
	CHECK_NEAR(model_power(h100, 0.8), 256 * 1.75, 1e-9);
	CHECK(model_find("v100") == NULL && model_get(99) == NULL);
	CHECK(model_mig(a100, "3g.20gb")->sms == 42 && model_mig(a100, "9g.1gb") == NULL);
}

/* One job of 60 % for 20 s, then idle until 30 s. */
static void test_energy_by_hand(void)
{
	two_gpus();
	struct sim_proc *p = add(1, 0.6, 20.0, 0, 0);

	/* 0.6 lies between 0.5 (204 W) and 0.65 (232 W). */
	double busy = 204 + (232 - 204) * 2.0 / 3.0;

	snap_advance(&s, 12.5);
	CHECK_NEAR(s.gpu[0].joules, busy * 12.5, 1e-6);
	CHECK_NEAR(p->work, 12.5, 1e-9);
	CHECK(p->ended == 0.0);
	snap_advance(&s, 30.0);
	CHECK_NEAR(s.gpu[0].joules, busy * 20 + 58 * 10, 1e-6);
	CHECK_NEAR(s.gpu[1].joules, 58 * 30, 1e-6);
	CHECK_NEAR(s.unit[0].smact, 0.6 * 20, 1e-9);
	CHECK_NEAR(s.unit[0].resident, 0.75 * 20, 1e-9);
	CHECK_NEAR(p->ended, 20.0, 1e-9);
	CHECK_NEAR(s.now, 30.0, 0.0);
}

/* In one step or in many, the result is the same. */
static void test_steps_do_not_matter(void)
{
	double joules;

	two_gpus();
	add(1, 0.7, 10.0, 9, 0);
	add(2, 0.4, 30.0, 9, 0);
	add(3, 0.2, 0.0, 0, 0);
	snap_advance(&s, 100.0);
	joules = s.gpu[0].joules;
	double ended = snap_by_pid(&s, 2)->ended, work = snap_by_pid(&s, 3)->work;

	two_gpus();
	add(1, 0.7, 10.0, 9, 0);
	add(2, 0.4, 30.0, 9, 0);
	add(3, 0.2, 0.0, 0, 0);
	for (int i = 1; i <= 1000; i++)
		snap_advance(&s, i * 0.1);
	CHECK_NEAR(s.gpu[0].joules, joules, 1e-6 * joules);
	CHECK_NEAR(snap_by_pid(&s, 2)->ended, ended, 1e-6);
	CHECK_NEAR(snap_by_pid(&s, 3)->work, work, 1e-6);
}

/* Time-sliced with a 10 s job, a 20 s job ends at 30 s: half speed for 20 s, full speed for the rest. */
static void test_interference_changes_with_the_neighbour(void)
{
	two_gpus();
	add(1, 0.5, 10.0, 0, 0);
	add(2, 0.5, 20.0, 0, 0);
	snap_advance(&s, 60.0);
	CHECK_NEAR(snap_by_pid(&s, 1)->ended, 20.0, 1e-6);
	CHECK_NEAR(snap_by_pid(&s, 2)->ended, 30.0, 1e-6);
}

static void test_many_gpus_run_at_the_slowest(void)
{
	double rate[SIM_MAX_PROCS];

	two_gpus();
	struct sim_proc *p = add(1, 0.5, 10.0, 0, 0);

	p->uses = 2;
	p->use[1].unit = 1;
	add(2, 0.5, 0.0, 0, 1);
	snap_load(&s, NULL, rate);
	CHECK_NEAR(rate[0], 0.5, 1e-12);
	CHECK_NEAR(rate[1], 0.5, 1e-12);
	snap_advance(&s, 25.0);
	CHECK_NEAR(p->ended, 20.0, 1e-6);
}

static void test_thread_percentage(void)
{
	struct law_load load[SIM_MAX_UNITS];

	two_gpus();
	add(1, 0.8, 10.0, 9, 0)->limit_pct = 50;
	snap_load(&s, load, NULL);
	CHECK_NEAR(load[0].smact, 0.4, 1e-12);
	snap_advance(&s, 25.0);
	CHECK_NEAR(s.proc[0].ended, 20.0, 1e-6);
}

static void test_mig_units(void)
{
	struct law_load load[SIM_MAX_UNITS];

	two_gpus();
	s.units = 3;
	s.gpu[0].units = 2;
	s.gpu[1].first_unit = 2;
	s.unit[2] = s.unit[1];
	s.unit[1] = s.unit[0];
	s.unit[0].mig = 1;
	s.unit[1].mig = 2;
	s.unit[0].share = s.unit[1].share = 0.4;
	add(1, 0.5, 10.0, 0, 0);
	add(2, 1.0, 10.0, 0, 1);
	snap_load(&s, load, NULL);
	/* Instances do not slow each other; the GPU shows the sum of their shares. */
	CHECK_NEAR(snap_gpu_smact(&s, 0, load), 0.4 * 0.5 + 0.4 * 1.0, 1e-12);
	snap_advance(&s, 10.0);
	CHECK_NEAR(s.proc[0].ended, 10.0, 1e-6);
	CHECK_NEAR(s.proc[1].ended, 10.0, 1e-6);
}

static void test_server_removal(void)
{
	two_gpus();
	add(9, 0.0, 0.0, 9, 0)->kind = SIM_MPS_SERVER;
	add(1, 0.5, 10.0, 9, 0);
	add(2, 0.5, 10.0, 0, 0);
	snap_by_pid(&s, 9)->faulted = 1;
	snap_remove(&s, (uint32_t)(snap_by_pid(&s, 2) - s.proc));
	CHECK(snap_by_pid(&s, 9)->faulted == 1);
	snap_remove(&s, (uint32_t)(snap_by_pid(&s, 1) - s.proc));
	CHECK(snap_by_pid(&s, 9)->faulted == 0);
	add(3, 0.5, 10.0, 9, 0);
	snap_remove(&s, (uint32_t)(snap_by_pid(&s, 9) - s.proc));
	CHECK(snap_by_pid(&s, 3)->stop == SIM_STOP_SERVER_GONE);
	CHECK(snap_by_pid(&s, 9) == NULL);
}

static void test_visible(void)
{
	static const struct {
		const char *value;
		int n, first;
	} table[] = {
		{ NULL, 2, 0 },		      { "", 0, 0 },		 { "-1", 0, 0 },
		{ "1", 1, 1 },		      { "1,0", 2, 1 },		 { " 1 , 0 ", 2, 1 },
		{ "1,7,0", 1, 1 },	      { "1,x", 1, 1 },		 { "0,0", 1, 0 },
		{ "GPU-b", 1, 1 },	      { "GPU-", 0, 0 },		 { "GPU-b0000000-0000,0", 2, 1 },
		{ "GPU-zz", 0, 0 },	      { "0x1", 0, 0 },		 { "MIG-1", 0, 0 },
		{ "1,", 1, 1 },		      { "NoDevFiles", 0, 0 },	 { "18446744073709551616", 0, 0 },
	};
	int base[SIM_MAX_GPUS], out[SIM_MAX_GPUS];

	two_gpus();
	int n = visible_all(&s, base);

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		int got = visible_units(&s, base, n, table[i].value, out);

		if (got != table[i].n || (got > 0 && out[0] != table[i].first))
			printf("CUDA_VISIBLE_DEVICES=%s\n", table[i].value == NULL ? "(unset)" : table[i].value);
		CHECK(got == table[i].n && (got == 0 || out[0] == table[i].first));
	}
	/* Under a daemon that has only the second GPU, index 0 is that one. */
	CHECK(visible_units(&s, base + 1, 1, "0", out) == 1 && out[0] == 1);
	CHECK(visible_units(&s, base + 1, 1, "1", out) == 0);
	CHECK(visible_units(&s, base + 1, 1, "GPU-a", out) == 0);
}

static void test_limits(void)
{
	CHECK(visible_mem_limit(NULL, 0, "GPU-a") == 0);
	CHECK(visible_mem_limit("0=12G,1=8192M", 0, "GPU-a") == 12ULL << 30);
	CHECK(visible_mem_limit("0=12G,1=8192M", 1, "GPU-a") == 8ULL << 30);
	CHECK(visible_mem_limit("GPU-a=3G", 5, "GPU-a") == 3ULL << 30);
	CHECK(visible_mem_limit("junk,0=x,=,0=1G", 0, "GPU-a") == 1ULL << 30);
}

static void test_parsers(void)
{
	static const char *const bad[] = { "", "G", "-1", " 1", "1x", "0x10", "inf", "nan", "1e999", "1 G", "99999999T" };
	uint64_t bytes;
	double seconds;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		CHECK(!parse_bytes(bad[i], &bytes));
		CHECK(!parse_seconds(bad[i], &seconds));
	}
	CHECK(parse_bytes("12G", &bytes) && bytes == 12ULL << 30);
	CHECK(parse_bytes("1.5GiB", &bytes) && bytes == 3ULL << 29);
	CHECK(parse_bytes("512m", &bytes) && bytes == 512ULL << 20);
	CHECK(parse_seconds("500ms", &seconds) && seconds == 0.5);
	CHECK(parse_seconds("2m", &seconds) && seconds == 120.0);
	CHECK(parse_seconds("7", &seconds) && seconds == 7.0);
}

static void test_grant_round_trip(void)
{
	struct mps_grant g = { .server = 42, .percent = 50, .gpus = 2 }, back;
	char line[MPS_LINE];

	g.gpu[1].unit = 3;
	g.gpu[1].limit = 12ULL << 30;
	mps_format_grant(&g, line);
	CHECK(mps_parse_grant(line, &back));
	CHECK(memcmp(&g, &back, sizeof(g)) == 0);
	CHECK(!mps_parse_grant("grant 1 100 99 0=0", &back));
	CHECK(!mps_parse_grant("grant 1 100 2 0=0", &back));
	CHECK(!mps_parse_grant("", &back));
}

/* Text from outside, cut and stirred at random: nothing may crash, and what is accepted must make sense. */
static void test_random_text(void)
{
	static const char *const seed[] = { "0,1", "GPU-a0000000-0000,MIG-1", "0=12G,GPU-b0000000-0000=8192M",
					    "grant 42 100 2 0=0 1=12884901888", "1.5GiB", "500ms", "-1" };
	static const char letters[] = "0123456789abcGMU-=,. \t\n%xX";
	int base[SIM_MAX_GPUS], out[SIM_MAX_GPUS], n, bad = 0;

	two_gpus();
	n = visible_all(&s, base);
	srandom(1);
	for (int round = 0; round < 50000; round++) {
		char text[64] = "";
		struct mps_grant g;
		uint64_t bytes = 0;
		double seconds = 0.0;

		snprintf(text, sizeof(text), "%s", seed[random() % 7]);
		for (long k = random() % 5; k > 0; k--)
			text[random() % (long)(strlen(text) + 1)] = letters[random() % (long)sizeof(letters)];
		text[sizeof(text) - 1] = '\0';

		int count = visible_units(&s, base, n, text, out);

		bad += count < 0 || count > 2 || (count == 2 && out[0] == out[1]);
		for (int i = 0; i < count; i++)
			bad += out[i] != 0 && out[i] != 1;
		bad += visible_mem_limit(text, 0, "GPU-a0000000-0000") > 1ULL << 50;
		bad += mps_parse_grant(text, &g) && g.gpus > SIM_MAX_GPUS;
		bad += parse_bytes(text, &bytes) && bytes > 1ULL << 50;
		bad += parse_seconds(text, &seconds) && !(seconds >= 0.0 && seconds <= 1e9);
	}
	CHECK(bad == 0);
}

int main(void)
{
	test_law();
	test_power();
	test_energy_by_hand();
	test_steps_do_not_matter();
	test_interference_changes_with_the_neighbour();
	test_many_gpus_run_at_the_slowest();
	test_thread_percentage();
	test_mig_units();
	test_server_removal();
	test_visible();
	test_limits();
	test_parsers();
	test_grant_round_trip();
	test_random_text();
	return report("pure_test");
}
