/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Those that wait for libcarma. The next is the one whose user has had least of
 * the library's time lately, and of one user's the one that came first: a user
 * who submits the largest scripts in many loops waits for oneself, and others
 * wait for the call that is being made.
 */
#ifndef CARMA_QUEUE_H
#define CARMA_QUEUE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* One question. Its caller frees it, or the worker if the caller has gone. */
struct ask {
	struct ask *next;
	atomic_uint state; /* its caller sleeps on it */
	uint32_t uid;
	char *text, *answer;
	size_t len;
};

/* What a user has had; a user who is not listed has had nothing. */
struct share {
	uint32_t uid;
	uint64_t us; /* halved each second */
};

#define QUEUE_SHARES 64

struct queue {
	struct ask *first;
	struct share shares[QUEUE_SHARES];
	uint64_t halved_s;
};

/* An ask is in one queue, once. The caller keeps others out. */
void queue_add(struct queue *q, struct ask *a);
void queue_remove(struct queue *q, struct ask *a);
struct ask *queue_next(struct queue *q); /* and takes it out; NULL: none waits */
void queue_charge(struct queue *q, uint32_t uid, uint64_t from_us, uint64_t to_us);

#endif
