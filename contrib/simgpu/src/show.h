/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMGPU_SHOW_H
#define SIMGPU_SHOW_H

#include "snapshot.h"

/* Prints the state for a person: one line per GPU, then one per process and GPU. */
void show_table(const struct sim_snap *s);

/* Prints it as JSON, schema simgpu.show/1. */
void show_json(const struct sim_snap *s, double scale);

#endif
