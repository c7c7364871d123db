/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpuload: a load of known size on an NVIDIA GPU, for gpucheck.
 *
 *   gpuload --mem 2048M --smact 50 --duration 20000ms
 *
 * holds the memory and runs a fixed amount of work that takes about the
 * duration when it is alone, on that share of the GPU's SMs: one block for each
 * SM, of which the hardware gives every SM one as long as some are free. So SM
 * activity ("at least one warp on the SM") is the share. Beside others the same
 * work takes longer. It needs the driver's libcuda.so.1 alone. Ends with 0, with 1 if
 * memory is refused (in PyTorch's words, which CARMA looks for), with 2 for
 * anything else.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The few calls of the CUDA driver API (cuda.h), by their versioned names. */
typedef int CUresult, CUdevice;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream;
typedef uint64_t CUdeviceptr;

static struct {
	CUresult (*init)(unsigned);
	CUresult (*device)(CUdevice *, int);
	CUresult (*attribute)(int *, int, CUdevice);
	CUresult (*context)(CUcontext *, unsigned, CUdevice);
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUresult (*module)(CUmodule *, const void *);
	CUresult (*function)(CUfunction *, CUmodule, const char *);
	CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
	CUresult (*synchronize)(void);
} cu;

enum { CUDA_ERROR_OUT_OF_MEMORY = 2, ATTRIBUTE_CLOCK_RATE_KHZ = 13, ATTRIBUTE_SMS = 16 };

/* A chain of n dependent multiply-adds, 4 cycles each on Volta and later. */
static const char ptx[] =
	".version 6.0\n.target sm_60\n.address_size 64\n"
	".visible .entry work(.param .u64 n, .param .u64 out)\n{\n"
	".reg .u64 %rd<4>; .reg .f32 %f<3>; .reg .pred %p;\n"
	"ld.param.u64 %rd1, [n]; ld.param.u64 %rd2, [out]; mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f3F7FFFFF;\n"
	"again: fma.rn.f32 %f1, %f1, %f2, %f2; fma.rn.f32 %f1, %f1, %f2, %f2;\n"
	"fma.rn.f32 %f1, %f1, %f2, %f2; fma.rn.f32 %f1, %f1, %f2, %f2;\n"
	"sub.u64 %rd1, %rd1, 4; setp.gt.s64 %p, %rd1, 0; @%p bra again;\n"
	"st.global.f32 [%rd2], %f1; ret;\n}\n";

static void must(CUresult rc, const char *what)
{
	if (rc) {
		fprintf(stderr, "gpuload: %s: CUDA error %d\n", what, rc);
		exit(2);
	}
}

static void *find(void *lib, const char *name)
{
	void *f = dlsym(lib, name);

	if (!f) {
		fprintf(stderr, "gpuload: libcuda.so.1 has no %s\n", name);
		exit(2);
	}
	return f;
}

static void load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);

	if (!lib) {
		fprintf(stderr, "gpuload: %s\n", dlerror());
		exit(2);
	}
	*(void **)&cu.init = find(lib, "cuInit");
	*(void **)&cu.device = find(lib, "cuDeviceGet");
	*(void **)&cu.attribute = find(lib, "cuDeviceGetAttribute");
	*(void **)&cu.context = find(lib, "cuCtxCreate_v2");
	*(void **)&cu.alloc = find(lib, "cuMemAlloc_v2");
	*(void **)&cu.module = find(lib, "cuModuleLoadData");
	*(void **)&cu.function = find(lib, "cuModuleGetFunction");
	*(void **)&cu.launch = find(lib, "cuLaunchKernel");
	*(void **)&cu.synchronize = find(lib, "cuCtxSynchronize");
}

/* number reads "2048M" or "20000ms"; the suffix is as given. */
static long number(const char *text, const char *suffix)
{
	char *end;
	long v = strtol(text, &end, 10);

	if (v <= 0 || strcmp(end, suffix)) {
		fprintf(stderr, "gpuload: %s is no number with %s behind it\n", text, *suffix ? suffix : "nothing");
		exit(2);
	}
	return v;
}

int main(int argc, char **argv)
{
	long mem = 0, smact = 0, duration = 0;
	uint64_t n;
	int sms, khz, blocks;
	CUdevice device;
	CUcontext context;
	CUdeviceptr memory;
	CUmodule module;
	CUfunction work;
	void *arguments[] = { &n, &memory };

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--mem"))
			mem = number(argv[i + 1], "M");
		else if (!strcmp(argv[i], "--smact"))
			smact = number(argv[i + 1], "");
		else if (!strcmp(argv[i], "--duration"))
			duration = number(argv[i + 1], "ms");
	}
	if (!mem || !smact || smact > 100 || !duration) {
		fprintf(stderr, "usage: gpuload --mem MIBM --smact PERCENT --duration Nms\n");
		return 2;
	}
	load();
	must(cu.init(0), "cuInit");
	must(cu.device(&device, 0), "cuDeviceGet");
	must(cu.attribute(&sms, ATTRIBUTE_SMS, device), "count SMs");
	must(cu.attribute(&khz, ATTRIBUTE_CLOCK_RATE_KHZ, device), "clock rate");
	must(cu.context(&context, 0, device), "cuCtxCreate");
	CUresult rc = cu.alloc(&memory, (size_t)mem << 20);
	if (rc == CUDA_ERROR_OUT_OF_MEMORY) {
		fprintf(stderr, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %ld.00 MiB.\n", mem);
		return 1;
	}
	must(rc, "cuMemAlloc");
	must(cu.module(&module, ptx), "load PTX");
	must(cu.function(&work, module, "work"), "find kernel");
	blocks = (int)(sms * smact + 50) / 100;
	/* Kernels of 10 ms: 4 cycles for each of n steps. Work is counted, not time. */
	n = (uint64_t)khz * 10 / 4;
	for (long ms = 0; ms < duration; ms += 10) {
		must(cu.launch(work, (unsigned)(blocks ? blocks : 1), 1, 1, 128, 1, 1, 0, NULL, arguments, NULL), "launch");
		/* A few in flight keep the SMs busy from one to the next. */
		if (ms % 100 == 90)
			must(cu.synchronize(), "run kernel");
	}
	must(cu.synchronize(), "run kernel");
	return 0;
}
