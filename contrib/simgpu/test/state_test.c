/* SPDX-License-Identifier: Apache-2.0 */
/* The shared file: who may open it, what it refuses, and that no death of a process can harm it. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "client.h"

static char path[4096];
static struct sim *sim;
static struct sim_snap copy;

static void nap_ms(long ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&ts, NULL);
}

static struct sim *fresh(uint32_t gpus)
{
	sim_close(sim);
	unlink(path);
	CHECK(sim_create(path, model_find("dgx-a100"), gpus, 100.0, NULL, 0) == 0);
	return sim = sim_open(path);
}

static struct sim_proc job(double demand)
{
	return (struct sim_proc){ .demand = demand, .limit_pct = 100, .uses = 1, .name = "test" };
}

static const struct sim_snap *look(void)
{
	sim_reap(sim, 0.0);
	sim_tell(sim, &copy);
	return &copy;
}

static void test_create_and_open(void)
{
	struct stat st;

	fresh(4);
	CHECK(sim != NULL && stat(path, &st) == 0 && (st.st_mode & 0777) == 0666);
	CHECK(sim_create(path, model_find("h100"), 1, 1.0, NULL, 0) != 0 && strstr(sim_error(), "it exists") != NULL);
	CHECK(strcmp(look()->gpu[0].uuid, copy.gpu[1].uuid) != 0);
	CHECK(strlen(copy.gpu[0].uuid) == 40);

	/* Another version is refused, and so is what is no state at all. */
	int fd = open(path, O_RDWR);
	uint32_t version = 99;

	CHECK(pwrite(fd, &version, sizeof(version), 8) == sizeof(version));
	CHECK(sim_open(path) == NULL && strstr(sim_error(), "has version 99") != NULL);
	CHECK(ftruncate(fd, 100) == 0);
	CHECK(sim_open(path) == NULL);
	CHECK(pwrite(fd, "garbage!", 8, 0) == 8);
	CHECK(sim_open(path) == NULL && strstr(sim_error(), "not a simgpu state") != NULL);
	close(fd);
	CHECK(sim_open("/nonexistent/state") == NULL);
	sim_close(sim);
	sim = NULL;
}

static void test_oom_and_limit(void)
{
	struct client_refusal why;
	struct sim_proc p = job(0.5);
	uint32_t slot;
	const uint64_t all = 40503 * MIB; /* 40536 less 33 reserved */

	fresh(1);
	p.use[0].limit = 0;
	CHECK(client_join(sim, &p, &slot) == CLIENT_OK);
	CHECK(client_resize(sim, slot, all + 1, &why) == CLIENT_DEVICE_OOM);
	CHECK(why.free == all && why.requested == all + 1 && why.total == all);
	CHECK(client_resize(sim, slot, all, &why) == CLIENT_OK);
	CHECK(snap_gpu_used(look(), 0) == all);
	CHECK(client_resize(sim, slot, 1, &why) == CLIENT_OK);
	client_leave(sim, slot);
	CHECK(look()->procs == 0);
	CHECK(client_resize(sim, slot, 1, &why) == CLIENT_NOT_READY);

	p.use[0].limit = 12ULL << 30;
	CHECK(client_join(sim, &p, &slot) == CLIENT_OK);
	CHECK(client_resize(sim, slot, 12ULL << 30, &why) == CLIENT_OK);
	CHECK(client_resize(sim, slot, (12ULL << 30) + 1, &why) == CLIENT_LIMIT_OOM && why.limit == 12ULL << 30);
	client_leave(sim, slot);
}

static void test_full_and_busy(void)
{
	struct sim_proc p = job(0.1), other = job(0.1);
	uint32_t slot;

	fresh(1);
	for (int i = 0; i < SIM_MAX_CLIENTS; i++)
		CHECK(client_join(sim, &p, &slot) == CLIENT_OK);
	CHECK(client_join(sim, &p, &slot) == CLIENT_FULL);
	for (uint32_t i = 0; i < SIM_MAX_CLIENTS; i++)
		client_leave(sim, i);
	CHECK(look()->procs == 0);

	sim_begin(sim)->gpu[0].compute_mode = SIM_EXCLUSIVE_PROCESS;
	sim_commit(sim, false);
	CHECK(client_join(sim, &p, &slot) == CLIENT_OK);
	CHECK(client_join(sim, &other, &slot) == CLIENT_BUSY);
	sim_begin(sim)->gpu[0].compute_mode = SIM_PROHIBITED;
	sim_commit(sim, false);
	client_leave(sim, 0);
	CHECK(client_join(sim, &p, &slot) == CLIENT_BUSY);
}

/* Killed while it holds the lock, with the spare snapshot half written. */
static void test_killed_inside_a_change(void)
{
	struct sim_proc p = job(0.5);
	uint32_t slot;
	int status;

	fresh(2);
	CHECK(client_join(sim, &p, &slot) == CLIENT_OK);
	uint32_t generation = sim_generation(sim);
	pid_t pid = fork();

	if (pid == 0) {
		struct sim_snap *s = sim_begin(sim);

		memset(s, 0xff, sizeof(*s));
		raise(SIGKILL);
	}
	waitpid(pid, &status, 0);
	CHECK(WIFSIGNALED(status));
	CHECK(look()->gpus == 2 && copy.procs == 1 && copy.proc[0].pid == getpid());
	CHECK(sim_generation(sim) == generation);
	client_leave(sim, slot);
	CHECK(look()->procs == 0);
}

/* A killed process runs no longer than to its last heartbeat, however late that is noticed. */
static void test_killed_process_ends_at_its_heartbeat(void)
{
	int status;

	fresh(1);
	pid_t pid = fork();

	if (pid == 0) {
		struct sim_proc p = job(1.0);
		uint32_t slot;

		if (client_join(sim, &p, &slot) == CLIENT_OK)
			raise(SIGKILL);
		_exit(1);
	}
	waitpid(pid, &status, 0);
	CHECK(WIFSIGNALED(status));
	sim_read(sim, &copy);
	CHECK(copy.procs == 1);
	double beat = copy.now; /* after its last real one */

	sim_set_beat(sim, copy.proc[0].slot, beat);
	nap_ms(50); /* 5 simulated seconds */
	double joined = copy.now - copy.proc[0].work;

	CHECK(look()->procs == 0);
	CHECK_NEAR(copy.unit[0].smact, beat - joined, 1e-3);
	CHECK_NEAR(copy.gpu[0].joules, 273 * (beat - joined) + 58 * (copy.now - (beat - joined)), 1.0);
}

/* As of a GPU's counters: what a reader has been told of energy and activity stands, whenever the process dies. */
static void test_nothing_told_is_taken_back(void)
{
	int joined[2];
	char byte;

	fresh(1);
	CHECK(pipe(joined) == 0);
	pid_t pid = fork();

	if (pid == 0) {
		struct sim_proc p = job(1.0);
		uint32_t slot;

		if (client_join(sim, &p, &slot) != CLIENT_OK || write(joined[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause(); /* its only heartbeat is the one of its start */
	}
	CHECK(read(joined[0], &byte, 1) == 1);
	close(joined[0]);
	close(joined[1]);
	nap_ms(50);
	CHECK(look()->procs == 1);
	double joules = copy.gpu[0].joules, smact = copy.unit[0].smact, now = copy.now;

	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	CHECK(look()->procs == 0 && copy.now > now);
	/* The process had run to the moment of the answer, and no longer. */
	CHECK_NEAR(copy.unit[0].smact, smact, 1e-9);
	CHECK_NEAR(copy.gpu[0].joules, joules + 58 * (copy.now - now), 1e-3);
}

/* Half of them stay and only change their memory, half come and go. */
static void load_forever(bool stays)
{
	struct client_refusal why;
	struct sim_proc p = job(0.3);
	uint32_t slot;

	for (;;) {
		if (client_join(sim, &p, &slot) != CLIENT_OK)
			continue;
		for (uint64_t i = 1; i < 8 || stays; i++) {
			client_resize(sim, slot, i % 8 * 64 * MIB, &why);
			sim_beat(sim, slot);
		}
		client_leave(sim, slot);
	}
}

static void consistent(const struct sim_snap *s, double *joules)
{
	CHECK(s->gpus == 2 && s->units == 2 && s->procs <= 100);
	for (uint32_t i = 0; i < s->procs; i++) {
		CHECK(s->proc[i].uses == 1 && s->proc[i].use[0].unit < 2 && s->proc[i].pid > 0);
		for (uint32_t k = 0; k < i; k++)
			CHECK(s->proc[i].slot != s->proc[k].slot);
	}
	CHECK(snap_gpu_used(s, 0) <= 50 * 8 * 64 * MIB);
	CHECK(s->gpu[0].joules >= *joules - 1e-6);
	CHECK(s->gpu[0].joules <= 273 * s->now + 1e-6);
	*joules = s->gpu[0].joules;
}

/* 50 processes change the state without pause and are killed at any point. */
static void test_kill_fifty_under_load(void)
{
	pid_t pid[50];
	double joules = 0.0;
	uint32_t procs = 0;

	fresh(2);
	for (int i = 0; i < 50; i++) {
		pid[i] = fork();
		if (pid[i] == 0)
			load_forever(i % 2 == 0);
	}
	srandom(1);
	/* One look for both: half of the processes come and go. */
	for (int i = 0; i < 60000 && (procs = look()->procs) < 25; i++)
		nap_ms(1);
	CHECK(procs >= 25);
	for (int i = 0; i < 50; i++) {
		nap_ms(random() % 8);
		consistent(look(), &joules);
		kill(pid[i], SIGKILL);
	}
	for (int i = 0; i < 50; i++)
		waitpid(pid[i], NULL, 0);
	consistent(look(), &joules);
	CHECK(copy.procs == 0 && snap_gpu_used(&copy, 0) == 0);

	/* And it works on. */
	struct sim_proc p = job(0.5);
	uint32_t slot;

	CHECK(client_join(sim, &p, &slot) == CLIENT_OK && slot == 0);
	client_leave(sim, slot);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	snprintf(path, sizeof(path), "%s/state", argv[1]);
	test_create_and_open();
	test_oom_and_limit();
	test_full_and_busy();
	test_killed_inside_a_change();
	test_killed_process_ends_at_its_heartbeat();
	test_nothing_told_is_taken_back();
	test_kill_fifty_under_load();
	sim_close(sim);
	return report("state_test");
}
