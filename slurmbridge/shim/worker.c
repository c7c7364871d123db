/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The thread that runs libcarma.
 *
 * Go's runtime installs signal handlers and unblocks signals on threads that
 * call into it. So one thread of our own, with all signals blocked, loads the
 * library and makes every call; Go's threads inherit its mask and slurmctld's
 * threads stay as they were. A caller, who holds slurmctld's locks, waits 50 ms
 * and then goes on without an answer. Callers stand in a queue (queue.h): the
 * thread goes from one to the next and wakes each alone, so that none waits for
 * another to be scheduled.
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "library.h"
#include "queue.h"
#include "shim.h"

#define ASK_MS 50     /* a submission waits so long for an answer */
#define STUCK_MS 150  /* a call that nobody waits for is given so long to end */
#define START_MS 1000 /* slurmctld's start waits so long for the library */
#define IDLE_MS 2000  /* carma.toml is looked at after so long without a submission */
#define DUE_MS 5000   /* and at the latest after so long, between two */
#define LOG_EVERY_S 60
#define SWITCH_MS 500 /* the switch file is looked for so often */
#define SLACK_NS 50000000UL

enum { WAITING, TAKEN, ANSWERED, ABANDONED }; /* the states of an ask */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t loaded;
	bool started, ready;
	const char *broken;    /* why nothing can be asked */
	struct queue queue;    /* those that wait */
	atomic_uint asked;     /* how often; the worker sleeps on it */
	bool asleep;           /* the worker is; all who come wake it, for one may be held up */
	bool abandoned;        /* nobody waits for the call that is being made, */
	struct timespec stuck; /* and from then on nobody waits behind it */
	unsigned long rounds;  /* of the worker, which show whether it gets a processor */
	bool starved;          /* somebody waited in vain, and there was none meanwhile */
	atomic_bool off;       /* the switch file is there */
	bool watched;          /* and has been looked for */
	const char *gres_prefix;
	char config[4096], switch_file[4096];
	time_t logged;
	unsigned long unlogged;
	struct library lib;
	char *recovery; /* partitions that take jobs from CARMA alone, with commas between */
	char *managed;  /* all partitions of carma.toml */
	char *whole;    /* what is booked for jobs without an answer (carma.h) */
} w = { .lock = PTHREAD_MUTEX_INITIALIZER };

bool worker_is_off(void)
{
	return w.off;
}

void worker_complain(const char *what, const char *why)
{
	time_t now = time(NULL);
	unsigned long unlogged;
	bool say;

	pthread_mutex_lock(&w.lock);
	say = !w.logged || now < w.logged || now - w.logged >= LOG_EVERY_S;
	unlogged = say ? w.unlogged : 0;
	w.unlogged = say ? 0 : w.unlogged + 1;
	if (say)
		w.logged = now;
	pthread_mutex_unlock(&w.lock);
	if (say)
		slurm_error("job_submit/carma: %s: %s (%lu more since the last such line)", what, why, unlogged);
}

static void log_and_free(char *message)
{
	if (message)
		slurm_error("job_submit/carma: %s", message);
	free(message);
}

static struct timespec in_ms(long ms)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_nsec += (ms % 1000) * 1000000;
	t.tv_sec += ms / 1000 + t.tv_nsec / 1000000000;
	t.tv_nsec %= 1000000000;
	return t;
}

static uint64_t now_us(void)
{
	struct timespec now = in_ms(0);

	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static bool past(struct timespec t)
{
	struct timespec now = in_ms(0);

	return now.tv_sec > t.tv_sec || (now.tv_sec == t.tv_sec && now.tv_nsec > t.tv_nsec);
}

/* Sleeping and waking without a mutex: whoever is woken would run into it while
 * the waker still has it, and each submission would cost two more switches. */
static int sleep_on(atomic_uint *word, unsigned int seen, const struct timespec *until)
{
	/* Its time is absolute and of CLOCK_MONOTONIC, futex(2). */
	return syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen, until, NULL, FUTEX_BITSET_MATCH_ANY) ? errno : 0;
}

/* The word may be gone by now: waking nobody there does no harm. */
static void wake(atomic_uint *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static struct ask *new_ask(uint32_t uid, char *text, size_t len)
{
	struct ask *a = calloc(1, sizeof(*a));

	if (!a) {
		free(text);
		return NULL;
	}
	a->uid = uid;
	a->text = text;
	a->len = len;
	return a;
}

static void drop(struct ask *a)
{
	free(a->text);
	free(a);
}

/* Called and left with the lock held; it is free while the library works. */
static void answer(void)
{
	struct ask *a = queue_next(&w.queue);
	uint32_t uid = a->uid;
	uint64_t start;
	char *text;

	a->state = TAKEN;
	pthread_mutex_unlock(&w.lock);
	start = now_us();
	text = w.lib.annotate(a->text, a->len);
	pthread_mutex_lock(&w.lock);
	queue_charge(&w.queue, uid, start, now_us());
	if (a->state == ABANDONED) {
		w.abandoned = false;
		free(text);
		drop(a);
		return;
	}
	a->answer = text;
	a->state = ANSWERED; /* from here on it is the caller's */
	pthread_mutex_unlock(&w.lock);
	wake(&a->state);
	pthread_mutex_lock(&w.lock);
}

/* Called and left with the lock held. Tells whether nobody came for IDLE_MS. */
static bool idle(void)
{
	struct timespec until = in_ms(IDLE_MS);
	unsigned int asked = w.asked;
	int rc;

	w.asleep = true;
	pthread_mutex_unlock(&w.lock);
	rc = sleep_on(&w.asked, asked, &until);
	pthread_mutex_lock(&w.lock);
	w.asleep = false;
	return rc == ETIMEDOUT && !w.queue.first;
}

static void say_version(void)
{
	char *version = w.lib.version();

	slurm_info("job_submit/carma: libcarma %s", version ? version : "unknown");
	free(version);
}

/* Kept here, for the library may be busy when a job is looked at, and a partition
 * that is closed to users must stay so. */
static void read_partitions(void)
{
	char *recovery = w.lib.recovery(), *managed = w.lib.managed(), *whole = w.lib.whole(), *before[3];

	pthread_mutex_lock(&w.lock);
	before[0] = w.recovery;
	before[1] = w.managed;
	before[2] = w.whole;
	w.recovery = recovery;
	w.managed = managed;
	w.whole = whole;
	pthread_mutex_unlock(&w.lock);
	for (size_t i = 0; i < sizeof(before) / sizeof(before[0]); i++)
		free(before[i]);
}

/* Whether a list with commas holds the first n bytes of name as an entry. */
static bool holds(const char *list, const char *name, size_t n)
{
	for (const char *end; list; list = *end ? end + 1 : NULL) {
		end = strchrnul(list, ',');
		if (n && (size_t)(end - list) == n && !memcmp(list, name, n))
			return true;
	}
	return false;
}

/* Whether one of partitions is in the list, whose name is written to name. */
static bool names_one(const char *list, const char *partitions, char *name, size_t room)
{
	bool found = false;

	for (const char *end; list && partitions && !found; partitions = *end ? end + 1 : NULL) {
		end = strchrnul(partitions, ',');
		found = holds(list, partitions, (size_t)(end - partitions));
		if (found)
			snprintf(name, room, "%.*s", (int)(end - partitions), partitions);
	}
	return found;
}

bool worker_recovers(const char *partitions, char *name, size_t room)
{
	bool found;

	pthread_mutex_lock(&w.lock);
	found = names_one(w.recovery, partitions, name, room);
	pthread_mutex_unlock(&w.lock);
	return found;
}

bool worker_manages(const char *partitions)
{
	char name[2];
	bool found;

	pthread_mutex_lock(&w.lock);
	found = names_one(w.managed, partitions, name, sizeof(name));
	pthread_mutex_unlock(&w.lock);
	return found;
}

bool worker_watches(void)
{
	bool watches;

	pthread_mutex_lock(&w.lock);
	watches = w.managed && !*w.managed;
	pthread_mutex_unlock(&w.lock);
	return watches;
}

/* The lines of the block that head begins, and their length; NULL: there is no such block. */
static const char *block_of(const char *head, size_t *len)
{
	size_t n = strlen(head);
	const char *end;

	for (const char *line = w.whole; line && *line; line = *end ? end + 1 : end) {
		end = strchrnul(line, '\n');
		if (strncmp(line, head, n))
			continue;
		line += n;
		end = strstr(line, "\nwhole ");
		*len = end ? (size_t)(end + 1 - line) : strlen(line);
		return line;
	}
	return NULL;
}

char *worker_whole(const char *partitions, const char *list, uint32_t gpus, bool constrains)
{
	const char *found = NULL, *lines;
	size_t len = 0, many = 0, n;
	char head[128], *copy;

	pthread_mutex_lock(&w.lock);
	for (const char *end; partitions && many < 2; partitions = *end ? end + 1 : NULL) {
		end = strchrnul(partitions, ',');
		n = (size_t)snprintf(head, sizeof(head), "whole %u %s %d %.*s\n", gpus, list, constrains,
				     (int)(end - partitions), partitions);
		if (n < sizeof(head) && (lines = block_of(head, &len))) {
			found = lines;
			many++;
		}
	}
	copy = many == 1 ? strndup(found, len) : NULL;
	pthread_mutex_unlock(&w.lock);
	return copy;
}

static void *work(void *unused)
{
	const char *trouble;
	char *message = NULL;
	struct timespec due = in_ms(DUE_MS);

	(void)unused;
	/* Go's sysmon wakes up every 20 us while calls come (runtime/proc.go), which
	 * costs as much as the answers. A thread inherits the slack of the one that
	 * makes it: Go's threads may be late, this one is not. No answer waits for
	 * them, as Go has one processor (libcarma.go). */
	prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0);
	trouble = library_load(&w.lib, w.config, w.gres_prefix, &message);
	prctl(PR_SET_TIMERSLACK, 0, 0, 0, 0);
	log_and_free(message);
	if (trouble)
		worker_complain(AS_WRITTEN, trouble);
	dlerror(); /* the second call frees what the first has returned (glibc, dlerror.c) */
	if (!trouble) {
		say_version();
		read_partitions();
	}
	pthread_mutex_lock(&w.lock);
	w.broken = trouble ? "libcarma could not be loaded" : NULL;
	w.ready = true;
	pthread_cond_broadcast(&w.loaded);
	while (!w.broken) {
		w.rounds++;
		w.starved = false;
		if (w.queue.first) {
			answer();
			if (!past(due))
				continue;
		} else if (!idle()) {
			continue;
		}
		w.abandoned = true; /* nobody ever waits for this one: carma.toml may be on a file system that hangs */
		w.stuck = in_ms(STUCK_MS);
		pthread_mutex_unlock(&w.lock);
		log_and_free(w.lib.tick());
		read_partitions();
		pthread_mutex_lock(&w.lock);
		w.abandoned = false;
		due = in_ms(DUE_MS);
	}
	pthread_mutex_unlock(&w.lock);
	return NULL;
}

/* A thread of its own, for the file system may hang, and the library: the switch is for
 * that, too, and a caller has slurmctld's locks. */
static void *watch(void *unused)
{
	const struct timespec pause = { SWITCH_MS / 1000, SWITCH_MS % 1000 * 1000000 };
	struct stat st;

	(void)unused;
	for (;;) {
		w.off = stat(w.switch_file, &st) == 0;
		if (!w.watched) {
			pthread_mutex_lock(&w.lock);
			w.watched = true;
			pthread_cond_broadcast(&w.loaded);
			pthread_mutex_unlock(&w.lock);
		}
		nanosleep(&pause, NULL);
	}
	return NULL;
}

static int start_thread(void *(*run)(void *))
{
	pthread_t thread;
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&thread, NULL, run, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!rc)
		pthread_detach(thread);
	return rc;
}

void worker_start(const char *gres_prefix)
{
	const char *config = getenv("CARMA_CONF");
	struct timespec until = in_ms(START_MS);
	pthread_condattr_t monotonic;

	if (w.started) /* slurmctld up to 23.11 loads plugins again on reconfigure */
		return;
	w.started = true;
	w.gres_prefix = gres_prefix;
	snprintf(w.config, sizeof(w.config), "%s", config && *config == '/' ? config : "/etc/carma/carma.toml");
	snprintf(w.switch_file, sizeof(w.switch_file), "%.*s/carma.disable", (int)(strrchr(w.config, '/') - w.config), w.config);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&w.loaded, &monotonic);
	if (start_thread(watch) || start_thread(work)) {
		w.broken = "cannot start a thread";
		return;
	}
	pthread_mutex_lock(&w.lock);
	while (!(w.ready && w.watched) && pthread_cond_timedwait(&w.loaded, &w.lock, &until) != ETIMEDOUT)
		;
	pthread_mutex_unlock(&w.lock);
}

/* Why it is no use to ask now; NULL: it is. A call that takes long may still
 * end; a library that is stuck must not cost every submission its 50 ms under
 * slurmctld's locks. */
static const char *useless(void)
{
	return w.broken ? w.broken : !w.ready ? "libcarma is not loaded yet" :
	       w.starved ? "libcarma gets no processor, or is in a long call" :
	       w.abandoned && past(w.stuck) ? "libcarma is stuck in an earlier call" : NULL;
}

/* Wait for the answer of a, which is in the queue since that round of the worker; a is not the
 * caller's after. Where slurmctld takes submissions one after the other (enable_rpc_queue), each that
 * waits in vain for a worker without a processor would hold up all behind it: one does. */
static const char *await(struct ask *a, unsigned long round, struct timespec until, char **answer)
{
	unsigned int state;
	int rc = 0;

	while (((state = a->state) == WAITING || state == TAKEN) && rc != ETIMEDOUT)
		rc = sleep_on(&a->state, state, &until);
	if (state != ANSWERED) {
		pthread_mutex_lock(&w.lock);
		state = a->state;
		if (state == TAKEN) {
			a->state = ABANDONED;
			w.abandoned = true;
			w.stuck = in_ms(STUCK_MS);
		} else if (state == WAITING) {
			queue_remove(&w.queue, a);
			w.starved = w.rounds == round;
		}
		pthread_mutex_unlock(&w.lock);
	}
	if (state == TAKEN)
		return "libcarma did not answer within 50 ms";
	*answer = a->answer;
	drop(a);
	return state == WAITING ? "libcarma is busy" : NULL;
}

char *worker_ask(uint32_t uid, char *ask, size_t len, const char **why)
{
	struct timespec until = in_ms(ASK_MS);
	struct ask *a = new_ask(uid, ask, len);
	const char *trouble;
	char *answer = NULL;
	unsigned long round = 0;
	bool asleep = false;

	if (!a) {
		*why = "out of memory";
		return NULL;
	}
	pthread_mutex_lock(&w.lock);
	trouble = useless();
	if (!trouble) {
		queue_add(&w.queue, a);
		w.asked++;
		asleep = w.asleep;
		round = w.rounds;
	}
	pthread_mutex_unlock(&w.lock);
	if (asleep)
		wake(&w.asked);
	if (trouble)
		drop(a);
	else
		trouble = await(a, round, until, &answer);
	*why = trouble;
	return answer;
}
