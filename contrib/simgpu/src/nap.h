/* SPDX-License-Identifier: Apache-2.0 */
/* Sleep that ends at once when a signal arrives, without handlers and their races. */
#ifndef SIMGPU_NAP_H
#define SIMGPU_NAP_H

#include <stddef.h>

/* Blocks the signals (a list ended by 0) and returns a descriptor for nap(), or -1. */
int nap_open(const int *signals);

/*
 * Sleeps for real seconds, or until the descriptor fd (-1: none) can be read.
 * Returns the number of a signal that arrived, else 0.
 */
int nap(int signals, double seconds, int fd);

#endif
