/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "framework.h"

/* Texts of cudaGetErrorString() and names of the runtime and driver API, CUDA 12. */
static const struct {
	enum cuda_error code;
	const char *runtime, *driver, *text;
} errors[] = {
	{ CUDA_OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ CUDA_DEVICES_UNAVAILABLE, "cudaErrorDevicesUnavailable", "CUDA_ERROR_DEVICE_UNAVAILABLE",
	  "CUDA-capable device(s) is/are busy or unavailable" },
	{ CUDA_NO_DEVICE, "cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
	{ CUDA_INVALID_DEVICE, "cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
	{ CUDA_ILLEGAL_ADDRESS, "cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS",
	  "an illegal memory access was encountered" },
	{ CUDA_MPS_CONNECTION_FAILED, "cudaErrorMpsConnectionFailed", "CUDA_ERROR_MPS_CONNECTION_FAILED",
	  "MPS client failed to connect to the MPS control daemon or the MPS server" },
	{ CUDA_MPS_RPC_FAILURE, "cudaErrorMpsRpcFailure", "CUDA_ERROR_MPS_RPC_FAILURE",
	  "the remote procedural call between the MPS server and the MPS client failed" },
	{ CUDA_MPS_SERVER_NOT_READY, "cudaErrorMpsServerNotReady", "CUDA_ERROR_MPS_SERVER_NOT_READY",
	  "MPS server is not ready to accept new MPS client requests" },
	{ CUDA_MPS_MAX_CLIENTS, "cudaErrorMpsMaxClientsReached", "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
	  "the hardware resources required to create MPS client have been exhausted" },
	{ CUDA_MPS_CLIENT_TERMINATED, "cudaErrorMpsClientTerminated", "CUDA_ERROR_MPS_CLIENT_TERMINATED",
	  "the MPS client has been terminated by the server" },
};

bool framework_parse(const char *text, enum framework *fw)
{
	static const char *const name[] = { "pytorch", "tensorflow", "jax", "cuda", "vllm" };

	for (unsigned i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
		if (strcmp(text, name[i]) == 0) {
			*fw = (enum framework)i;
			return true;
		}
	}
	return false;
}

/* "2026-01-11 00:02:21.219090", as the log lines of TensorFlow and XLA begin. */
static const char *stamp(void)
{
	static char buf[48];
	char day[32];
	struct timeval tv;
	struct tm tm;

	gettimeofday(&tv, NULL);
	localtime_r(&tv.tv_sec, &tm);
	strftime(day, sizeof(day), "%Y-%m-%d %H:%M:%S", &tm);
	snprintf(buf, sizeof(buf), "%s.%06ld", day, (long)tv.tv_usec);
	return buf;
}

static void traceback(const char *call)
{
	fprintf(stderr,
		"Traceback (most recent call last):\n"
		"  File \"train.py\", line 118, in <module>\n"
		"    main()\n"
		"  File \"train.py\", line 96, in main\n"
		"    %s\n",
		call);
}

static int pytorch_error(enum cuda_error e, const char *name, const char *text)
{
	/* c10/cuda/CUDAFunctions.cpp and torch/csrc/cuda/Module.cpp: errors of the first call have their own words. */
	if (e == CUDA_NO_DEVICE) {
		traceback("model = model.to(\"cuda\")");
		fprintf(stderr, "RuntimeError: No CUDA GPUs are available\n");
		return 1;
	}
	if (e == CUDA_MPS_CONNECTION_FAILED || e == CUDA_MPS_SERVER_NOT_READY || e == CUDA_MPS_MAX_CLIENTS) {
		traceback("model = model.to(\"cuda\")");
		fprintf(stderr,
			"RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before "
			"calling NumCudaDevices() that might have already set an error? Error %d: %s\n",
			e, text);
		return 1;
	}
	traceback("loss.backward()");
	/* c10/cuda/CUDAException.cpp, PyTorch 2.9 */
	fprintf(stderr,
		"torch.AcceleratorError: CUDA error: %s\n"
		"Search for `%s' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
		"information.\n"
		"CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might "
		"be incorrect.\n"
		"For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
		"Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\n",
		text, name);
	return 1;
}

int framework_cuda_error(enum framework fw, enum cuda_error e)
{
	unsigned i = 0;

	while (i < sizeof(errors) / sizeof(errors[0]) - 1 && errors[i].code != e)
		i++;
	switch (fw) {
	case FW_PYTORCH:
	case FW_VLLM:
		return pytorch_error(e, errors[i].runtime, errors[i].text);
	case FW_TENSORFLOW:
		if (e != CUDA_ILLEGAL_ADDRESS && e != CUDA_MPS_RPC_FAILURE && e != CUDA_MPS_CLIENT_TERMINATED) {
			/* TensorFlow itself would go on on the CPU; the script that we stand for wants a GPU. */
			fprintf(stderr,
				"%s: E external/local_xla/xla/stream_executor/cuda/cuda_platform.cc:51] failed call to cuInit: "
				"INTERNAL: CUDA error: Failed call to cuInit: %s: %s\n",
				stamp(), errors[i].driver, errors[i].text);
			traceback("raise RuntimeError(\"tf.config.list_physical_devices('GPU') is empty\")");
			fprintf(stderr, "RuntimeError: tf.config.list_physical_devices('GPU') is empty\n");
			return 1;
		}
		traceback("model.fit(train, epochs=epochs)");
		fprintf(stderr, "tensorflow.python.framework.errors_impl.InternalError: Graph execution error:\n\n"
				"CUDA error: Failed to synchronize stream: %s: %s\n"
				"\t [[{{node StatefulPartitionedCall}}]] [Op:__inference_train_function_3317]\n",
			errors[i].driver, errors[i].text);
		return 1;
	case FW_JAX:
		traceback("state = train_step(state, batch)");
		if (e == CUDA_NO_DEVICE)
			fprintf(stderr,
				"RuntimeError: Unable to initialize backend 'cuda': INTERNAL: no supported devices found for "
				"platform CUDA (you may need to uninstall the failing plugin package, or set "
				"JAX_PLATFORMS=cpu to skip this backend.)\n");
		else
			fprintf(stderr, "jaxlib._jax.XlaRuntimeError: INTERNAL: CUDA error: %s: %s\n", errors[i].driver,
				errors[i].text);
		return 1;
	case FW_CUDA:
		break;
	}
	fprintf(stderr, "train.cu:118: CUDA error: %s (%s)\n", errors[i].text, errors[i].runtime);
	return e == CUDA_OUT_OF_MEMORY ? 2 : 1;
}

/* As c10::CachingAllocator::format_size() does. */
static const char *size(char buf[32], uint64_t bytes)
{
	if (bytes <= 1024)
		snprintf(buf, 32, "%llu bytes", (unsigned long long)bytes);
	else if (bytes <= 1048576)
		snprintf(buf, 32, "%.2f KiB", bytes / 1024.0);
	else if (bytes <= 1073741824)
		snprintf(buf, 32, "%.2f MiB", bytes / 1048576.0);
	else
		snprintf(buf, 32, "%.2f GiB", bytes / 1073741824.0);
	return buf;
}

/* c10/cuda/CUDACachingAllocator.cpp: PyTorch 2.9 names every process on the GPU, as NVML lists them. */
static int pytorch_oom(const struct sim_snap *s, const struct client_refusal *why, int unit)
{
	/* The CUDA context is not PyTorch's own memory; of the rest a little is cached but not in use. */
	const uint64_t context = 450 * MIB, pool = why->in_use > context ? why->in_use - context : 0;
	char a[32], b[32], c[32];

	traceback("loss.backward()");
	fprintf(stderr,
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %s. GPU %u has a total capacity of %s of "
		"which %s is free. ",
		size(a, why->requested), why->use, size(b, why->total), size(c, why->free));
	for (uint32_t i = 0; i < s->procs; i++) {
		const struct sim_proc *p = &s->proc[i];

		for (uint32_t k = 0; k < p->uses; k++) {
			if (p->use[k].unit != unit)
				continue;
			if (p->pid == getpid())
				fprintf(stderr, "Including non-PyTorch memory, this process");
			else
				fprintf(stderr, "Process %d", p->pid);
			fprintf(stderr, " has %s memory in use. ", size(a, p->use[k].bytes));
		}
	}
	fprintf(stderr,
		"Of the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated. If "
		"reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to "
		"avoid fragmentation.  See documentation for Memory Management  "
		"(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)\n",
		size(a, pool - pool / 64), size(b, pool / 64));
	return 1;
}

int framework_oom(enum framework fw, const struct sim_snap *s, const struct client_refusal *why, int unit)
{
	unsigned long long want = why->requested, rounded = (want + 255) & ~255ULL;
	const char *xla = fw == FW_JAX ? "external/xla" : "external/local_xla";

	if (fw == FW_PYTORCH || fw == FW_VLLM)
		return pytorch_oom(s, why, unit);
	if (fw == FW_CUDA)
		return framework_cuda_error(fw, CUDA_OUT_OF_MEMORY);

	/* XLA's allocator speaks first: xla/tsl/framework/bfc_allocator.cc, TensorFlow 2.17 on and JAX 0.4.3x on. */
	fprintf(stderr,
		"%s: W %s/xla/tsl/framework/bfc_allocator.cc:501] Allocator (GPU_%u_bfc) ran out of memory trying to "
		"allocate %.2fGiB (rounded to %llu)requested by op \n",
		stamp(), xla, why->use, (double)want / 1073741824.0, rounded);
	if (fw == FW_JAX) {
		traceback("state = train_step(state, batch)");
		fprintf(stderr,
			"jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate %llu bytes.\n",
			want);
		return 1;
	}
	fprintf(stderr,
		"%s: I tensorflow/core/framework/local_rendezvous.cc:407] Local rendezvous is aborting with status: "
		"RESOURCE_EXHAUSTED: Out of memory while trying to allocate %llu bytes.\n",
		stamp(), want);
	traceback("model.fit(train, epochs=epochs)");
	fprintf(stderr,
		"tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\n\n"
		"Out of memory while trying to allocate %llu bytes.\n"
		"\t [[{{node StatefulPartitionedCall}}]]\n"
		"Hint: If you want to see a list of allocated tensors when OOM happens, add "
		"report_tensor_allocations_upon_oom to RunOptions for current allocation info. This isn't available when "
		"running in Eager mode.\n"
		" [Op:__inference_train_function_3317]\n",
		want);
	return 1;
}

void framework_refused(enum framework fw, uint64_t bytes)
{
	/* xla/stream_executor/cuda/cuda_driver.cc, as TensorFlow 2.16 and JAX 0.4 print it. */
	fprintf(stderr,
		"%s: E %s/xla/stream_executor/cuda/cuda_driver.cc:1035] failed to allocate %.2fGiB (%llu bytes) from "
		"device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n",
		stamp(), fw == FW_JAX ? "external/xla" : "external/local_xla", (double)bytes / 1073741824.0,
		(unsigned long long)bytes);
}
