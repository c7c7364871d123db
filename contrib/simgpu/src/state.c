/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "state.h"

#define MAGIC "SIMGPU"
#define VERSION 2

struct sim_file {
	char magic[8];
	uint32_t version;
	uint32_t size;
	double scale;
	int64_t epoch_ns; /* CLOCK_MONOTONIC when it was made */
	pthread_mutex_t lock;
	_Atomic uint32_t active; /* which snapshot is in force */
	_Atomic uint32_t generation;
	_Atomic int64_t reaped_ns;
	_Atomic int64_t beat_us[SIM_MAX_PROCS]; /* simulated time of each slot's last heartbeat */
	struct sim_snap snap[2];
};

struct sim {
	struct sim_file *f;
};

static _Thread_local char message[512];

const char *sim_error(void)
{
	return message;
}

int sim_fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(message, sizeof(message), fmt, ap);
	va_end(ap);
	return -1;
}

static int64_t monotonic_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

static int init_lock(pthread_mutex_t *lock)
{
	pthread_mutexattr_t a;

	pthread_mutexattr_init(&a);
	pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
	return pthread_mutex_init(lock, &a);
}

static void make_uuid(char out[44], const char *prefix)
{
	uint8_t b[16];

	if (getrandom(b, sizeof(b), 0) != sizeof(b))
		memset(b, 0x5a, sizeof(b));
	snprintf(out, 44, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix, b[0], b[1],
		 b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static int add_units(struct sim_snap *s, uint32_t gpu, const struct model *m, const struct sim_mig *mig, int migs)
{
	struct sim_gpu *g = &s->gpu[gpu];
	uint32_t slices = 0;

	g->first_unit = s->units;
	for (int i = 0; i < migs; i++) {
		if (mig[i].gpu != gpu)
			continue;
		struct sim_unit *u = &s->unit[s->units++];

		slices += (uint32_t)mig[i].profile->name[0] - '0';
		if (slices > SIM_MAX_MIG)
			return sim_fail("GPU %u: its MIG profiles need more than %d slices", gpu, SIM_MAX_MIG);
		u->gpu = gpu;
		u->mig = ++g->units;
		u->bytes = mig[i].profile->mib * MIB;
		u->share = (double)mig[i].profile->sms / m->sms;
		snprintf(u->profile, sizeof(u->profile), "%s", mig[i].profile->name);
		make_uuid(u->uuid, "MIG");
	}
	if (g->units == 0) {
		struct sim_unit *u = &s->unit[s->units++];

		g->units = 1;
		u->gpu = gpu;
		u->bytes = (uint64_t)(m->total_mib - m->reserved_mib) * MIB;
		u->share = 1.0;
		memcpy(u->uuid, g->uuid, sizeof(u->uuid));
	}
	return 0;
}

static int fill(struct sim_file *f, const struct model *m, uint32_t gpus, double scale, const struct sim_mig *mig,
		int migs)
{
	struct sim_snap *s = &f->snap[0];

	memcpy(f->magic, MAGIC, sizeof(MAGIC));
	f->version = VERSION;
	f->size = sizeof(*f);
	f->scale = scale;
	f->epoch_ns = monotonic_ns();
	if (init_lock(&f->lock) != 0)
		return sim_fail("cannot make a process-shared robust mutex");
	s->model = model_number(m);
	s->gpus = gpus;
	for (uint32_t g = 0; g < gpus; g++) {
		make_uuid(s->gpu[g].uuid, "GPU");
		if (add_units(s, g, m, mig, migs) != 0)
			return -1;
	}
	return 0;
}

int sim_create(const char *path, const struct model *m, uint32_t gpus, double scale, const struct sim_mig *mig,
	       int migs)
{
	char tmp[4096];
	int rc = -1;

	if ((size_t)snprintf(tmp, sizeof(tmp), "%s.%d", path, getpid()) >= sizeof(tmp))
		return sim_fail("%s: the path is too long", path);
	int fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

	if (fd < 0)
		return sim_fail("cannot create %s: %s", tmp, strerror(errno));
	void *map = MAP_FAILED;

	if (fchmod(fd, 0666) == 0 && ftruncate(fd, sizeof(struct sim_file)) == 0)
		map = mmap(NULL, sizeof(struct sim_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		sim_fail("cannot fill %s: %s", tmp, strerror(errno));
	} else {
		rc = fill(map, m, gpus, scale, mig, migs);
		munmap(map, sizeof(struct sim_file));
	}
	/* link() does not replace: a state in use is never pulled away from its processes. */
	if (rc == 0 && link(tmp, path) != 0)
		rc = sim_fail("cannot create %s: %s", path,
			      errno == EEXIST ? "it exists; remove it first" : strerror(errno));
	unlink(tmp);
	close(fd);
	return rc;
}

static int check(const struct sim_file *f, off_t size, const char *path)
{
	if ((size_t)size < sizeof(f->magic) + 8 || memcmp(f->magic, MAGIC, sizeof(MAGIC)) != 0)
		return sim_fail("%s is not a simgpu state: make one with 'simgpu create'", path);
	if (f->version != VERSION || f->size != sizeof(*f) || (size_t)size != sizeof(*f))
		return sim_fail("state %s has version %u, this program needs %u: remove it and run 'simgpu create'",
				path, f->version, VERSION);
	if (monotonic_ns() < f->epoch_ns)
		return sim_fail("state %s is from before the last boot: remove it and run 'simgpu create'", path);
	return 0;
}

struct sim *sim_open(const char *path)
{
	struct stat st;

	if (path == NULL)
		path = getenv(SIM_STATE_ENV);
	if (path == NULL || *path == '\0') {
		sim_fail("no state: set %s to a file made with 'simgpu create'", SIM_STATE_ENV);
		return NULL;
	}
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0) {
		sim_fail("cannot open state %s: %s", path, fd < 0 ? strerror(errno) : "not a simgpu state");
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	struct sim_file *f = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	close(fd);
	if (f == MAP_FAILED) {
		sim_fail("cannot map state %s: %s", path, strerror(errno));
		return NULL;
	}
	struct sim *sim = malloc(sizeof(*sim));

	if (sim == NULL || check(f, st.st_size, path) != 0) {
		munmap(f, (size_t)st.st_size);
		free(sim);
		return NULL;
	}
	sim->f = f;
	return sim;
}

void sim_close(struct sim *sim)
{
	if (sim == NULL)
		return;
	munmap(sim->f, sizeof(*sim->f));
	free(sim);
}

double sim_now(const struct sim *sim)
{
	return (double)(monotonic_ns() - sim->f->epoch_ns) * 1e-9 * sim->f->scale;
}

double sim_scale(const struct sim *sim)
{
	return sim->f->scale;
}

uint32_t sim_generation(const struct sim *sim)
{
	return atomic_load(&sim->f->generation);
}

void sim_set_beat(struct sim *sim, uint32_t slot, double when)
{
	atomic_store(&sim->f->beat_us[slot], (int64_t)(when * 1e6));
}

void sim_beat(struct sim *sim, uint32_t slot)
{
	sim_set_beat(sim, slot, sim_now(sim));
}

static void lock(struct sim *sim)
{
	/* The holder died: what it had begun is in the spare snapshot, which the next change overwrites. */
	if (pthread_mutex_lock(&sim->f->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&sim->f->lock);
}

static struct sim_snap *begin(struct sim *sim)
{
	lock(sim);
	uint32_t active = atomic_load(&sim->f->active) & 1;
	struct sim_snap *s = &sim->f->snap[!active];

	snap_copy(s, &sim->f->snap[active]);
	return s;
}

struct sim_snap *sim_begin(struct sim *sim)
{
	struct sim_snap *s = begin(sim);

	snap_advance(s, sim_now(sim));
	return s;
}

void sim_commit(struct sim *sim, bool rates_changed)
{
	atomic_fetch_xor(&sim->f->active, 1);
	if (rates_changed)
		atomic_fetch_add(&sim->f->generation, 1);
	pthread_mutex_unlock(&sim->f->lock);
}

void sim_abort(struct sim *sim)
{
	pthread_mutex_unlock(&sim->f->lock);
}

void sim_read(struct sim *sim, struct sim_snap *copy)
{
	lock(sim);
	snap_copy(copy, &sim->f->snap[atomic_load(&sim->f->active) & 1]);
	pthread_mutex_unlock(&sim->f->lock);
	snap_advance(copy, sim_now(sim));
}

void sim_tell(struct sim *sim, struct sim_snap *copy)
{
	const struct sim_snap *s = sim_begin(sim);

	snap_copy(copy, s);
	sim_commit(sim, false);
}

uint64_t sim_process_start(int pid)
{
	char path[32], buf[1024];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, sizeof(buf) - 1);

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return 0;
	buf[n] = '\0';
	/* proc(5): pid (comm) state ...; comm may hold anything, so count fields from its last bracket. */
	char *p = strrchr(buf, ')');

	if (p == NULL || p[1] == '\0' || p[2] == 'Z' || p[2] == 'X')
		return 0;
	p += 2;
	for (int field = 3; field < 22 && p != NULL; field++)
		if ((p = strchr(p, ' ')) != NULL)
			p++;
	return p == NULL ? 0 : strtoull(p, NULL, 10);
}

/* The process that was gone first: its index, its last heartbeat in *when; or -1. */
static int first_gone(struct sim *sim, const struct sim_snap *s, const bool gone[], double *when)
{
	int first = -1;

	for (uint32_t i = 0; i < s->procs; i++) {
		double beat = (double)atomic_load(&sim->f->beat_us[s->proc[i].slot]) * 1e-6;

		if (!gone[s->proc[i].slot] || (first >= 0 && beat >= *when))
			continue;
		first = (int)i;
		*when = beat;
	}
	return first;
}

void sim_reap(struct sim *sim, double max_age)
{
	int64_t now = monotonic_ns(), last = atomic_load(&sim->f->reaped_ns);
	bool gone[SIM_MAX_PROCS] = { false }, any = false;
	struct {
		int32_t pid;
		uint32_t slot;
		uint64_t start;
	} who[SIM_MAX_PROCS];
	uint32_t n;

	if (max_age > 0.0 && (double)(now - last) * 1e-9 < max_age)
		return;
	/* Of several that look at once, one does the work; but max_age 0 means now, whatever others do. */
	if (!atomic_compare_exchange_strong(&sim->f->reaped_ns, &last, now) && max_age > 0.0)
		return;
	lock(sim);
	const struct sim_snap *s = &sim->f->snap[atomic_load(&sim->f->active) & 1];

	for (n = 0; n < s->procs; n++) {
		who[n].pid = s->proc[n].pid;
		who[n].slot = s->proc[n].slot;
		who[n].start = s->proc[n].start;
	}
	pthread_mutex_unlock(&sim->f->lock);
	for (uint32_t i = 0; i < n; i++)
		any |= gone[who[i].slot] = sim_process_start(who[i].pid) != who[i].start;
	if (!any)
		return;

	struct sim_snap *spare = begin(sim);
	double when = 0.0;

	/* A slot can have a new owner by now. */
	for (uint32_t i = 0; i < spare->procs; i++)
		gone[spare->proc[i].slot] &= sim_process_start(spare->proc[i].pid) != spare->proc[i].start;
	for (int i; (i = first_gone(sim, spare, gone, &when)) >= 0;) {
		double limit = sim_now(sim);

		snap_advance(spare, when < limit ? when : limit);
		snap_remove(spare, (uint32_t)i);
	}
	snap_advance(spare, sim_now(sim));
	sim_commit(sim, true);
}
