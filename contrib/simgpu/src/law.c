/* SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>

#include "law.h"

double law_resident(double demand)
{
	/* utilization.gpu overstates SM activity: a kernel is resident longer than its SMs are busy. */
	double d = 1.25 * demand;

	return d < 1.0 ? d : 1.0;
}

static bool same_group(const struct law_client *a, const struct law_client *b)
{
	return a == b || (a->group != 0 && a->group == b->group);
}

/*
 * Clients of one MPS server run together: combined activity U = 1 - prod(1 - u_i), each at rate U / sum(u_i),
 * so that SM work is conserved. k groups without a common server are time-sliced: each gets 1/k of the time.
 */
struct law_load law_share(struct law_client *c, int n)
{
	struct law_load load = { 0.0, 0.0 };
	double idle = 1.0;
	int groups = 0;

	for (int i = 0; i < n; i++) {
		double sum = 0.0, free = 1.0;
		bool first = true;

		for (int j = 0; j < n; j++) {
			if (!same_group(&c[i], &c[j]))
				continue;
			if (j < i)
				first = false;
			sum += c[j].demand;
			free *= 1.0 - c[j].demand;
		}
		c[i].rate = sum > 0.0 ? (1.0 - free) / sum : 1.0;
		idle *= 1.0 - law_resident(c[i].demand);
		if (first) {
			groups++;
			load.smact += 1.0 - free;
		}
	}
	if (groups == 0)
		return load;
	for (int i = 0; i < n; i++)
		c[i].rate /= groups;
	load.smact /= groups;
	load.resident = 1.0 - idle;
	return load;
}
