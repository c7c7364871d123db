/* SPDX-License-Identifier: Apache-2.0 */
/* How jobs on one GPU slow each other. Pure; README.md gives the sources. */
#ifndef SIMGPU_LAW_H
#define SIMGPU_LAW_H

/*
 * Made up, for want of data: memory bandwidth and occupancy follow SM activity by a fixed factor. Good for
 * testing that a reader reads them, not for what they say.
 */
#define LAW_DRAM_PER_SMACT 0.4
#define LAW_OCCUPANCY_PER_SMACT 0.5

/*
 * One running process on a GPU.
 * demand: its SM activity when alone, 0 to 1.
 * group:  MPS server that it runs under; 0 when it has none and is time-sliced by itself.
 * rate:   out: the part of its alone speed that it gets, 0 to 1.
 */
struct law_client {
	double demand;
	int group;
	double rate;
};

/* What the GPU shows: mean SM activity, and the part of the time in which any kernel is resident. */
struct law_load {
	double smact;
	double resident;
};

/* Shares one GPU among n clients: sets each rate, returns the load. */
struct law_load law_share(struct law_client *c, int n);

/* Part of the time in which a job of that SM demand has a kernel resident when alone. */
double law_resident(double demand);

#endif
