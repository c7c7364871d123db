/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "queue.h"

void queue_add(struct queue *q, struct ask *a)
{
	struct ask **end = &q->first;

	while (*end)
		end = &(*end)->next;
	a->next = NULL;
	*end = a;
}

void queue_remove(struct queue *q, struct ask *a)
{
	struct ask **at = &q->first;

	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
}

/* The user's entry, or the one of who has had least. */
static struct share *share_of(struct queue *q, uint32_t uid)
{
	struct share *least = q->shares;

	for (struct share *s = q->shares; s < q->shares + QUEUE_SHARES; s++) {
		if (s->us && s->uid == uid)
			return s;
		if (s->us < least->us)
			least = s;
	}
	return least;
}

static uint64_t had(struct queue *q, uint32_t uid)
{
	const struct share *s = share_of(q, uid);

	return s->uid == uid ? s->us : 0;
}

struct ask *queue_next(struct queue *q)
{
	struct ask *next = q->first;
	uint64_t least = next ? had(q, next->uid) : 0;

	for (struct ask *a = next; a && least; a = a->next) {
		uint64_t us = a->uid == next->uid ? least : had(q, a->uid);

		if (us < least) {
			next = a;
			least = us;
		}
	}
	if (next)
		queue_remove(q, next);
	return next;
}

void queue_charge(struct queue *q, uint32_t uid, uint64_t from_us, uint64_t to_us)
{
	uint64_t now_s = to_us / 1000000, halve = now_s - q->halved_s;
	struct share *s;

	for (int i = 0; halve && i < QUEUE_SHARES; i++)
		q->shares[i].us = halve < 64 ? q->shares[i].us >> halve : 0;
	q->halved_s = now_s;
	s = share_of(q, uid);
	if (s->uid != uid) {
		s->uid = uid;
		s->us = 0;
	}
	s->us += to_us - from_us + 1;
}
