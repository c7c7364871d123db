/* SPDX-License-Identifier: Apache-2.0 */
/* What a failed training process prints on stderr, and its exit status, by framework. */
#ifndef SIMGPU_FRAMEWORK_H
#define SIMGPU_FRAMEWORK_H

#include "client.h"

enum framework { FW_PYTORCH, FW_TENSORFLOW, FW_JAX, FW_CUDA, FW_VLLM };

/* Numbers of cudaError_t. */
enum cuda_error {
	CUDA_OUT_OF_MEMORY = 2,
	CUDA_DEVICES_UNAVAILABLE = 46,
	CUDA_NO_DEVICE = 100,
	CUDA_INVALID_DEVICE = 101,
	CUDA_ILLEGAL_ADDRESS = 700,
	CUDA_MPS_CONNECTION_FAILED = 805,
	CUDA_MPS_RPC_FAILURE = 806,
	CUDA_MPS_SERVER_NOT_READY = 807,
	CUDA_MPS_MAX_CLIENTS = 808,
	CUDA_MPS_CLIENT_TERMINATED = 810,
};

bool framework_parse(const char *text, enum framework *fw);

/* Prints a CUDA error other than out of memory. Returns the exit status. */
int framework_cuda_error(enum framework fw, enum cuda_error e);

/* Prints out of memory on the process's device number why->use. s: the moment of the refusal. Exit status. */
int framework_oom(enum framework fw, const struct sim_snap *s, const struct client_refusal *why, int unit);

/* Prints the log line of an allocation that was refused and is tried again with less. */
void framework_refused(enum framework fw, uint64_t bytes);

#endif
