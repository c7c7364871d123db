/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in for CUDA MPS: a control daemon per pipe directory, one server process per user at a time.
 *
 * The daemon listens on the socket "control" in the pipe directory and takes one message of one line. As the real
 * one it does nothing else until a client that has connected sends it:
 *   attach            from a CUDA client: answered by a grant when a server of its user is ready; until then it
 *                     waits, and the open connection is the client's membership
 *   run COMMAND ...   from nvidia-cuda-mps-control: answered by a status line and the output
 */
#ifndef SIMGPU_MPS_H
#define SIMGPU_MPS_H

#include "snapshot.h"

#define MPS_PIPE_ENV "CUDA_MPS_PIPE_DIRECTORY"
#define MPS_LOG_ENV "CUDA_MPS_LOG_DIRECTORY"
#define MPS_VERSION_ENV "SIMGPU_MPS_VERSION" /* whose words it has: 535, or 550 */
#define MPS_PERCENT_ENV "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
#define MPS_LIMIT_ENV "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
#define MPS_LINE 4096

/* What a server was started with: the daemon's GPUs and defaults. server 0: refused. */
struct mps_grant {
	int server;
	uint32_t percent;
	uint32_t gpus;
	struct {
		int unit;
		uint64_t limit;
	} gpu[SIM_MAX_GPUS];
};

/* Connects to the daemon of that pipe directory; -1 if none answers. */
int mps_connect(const char *pipe_dir);

/* A grant as a line and back. */
void mps_format_grant(const struct mps_grant *g, char line[MPS_LINE]);
bool mps_parse_grant(const char *line, struct mps_grant *g);

#endif
