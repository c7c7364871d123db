/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpuload: a load of known size on an NVIDIA GPU, for gpucheck.
 *
 *   gpuload --mem 2048M --smact 50 --duration 20000ms [--kind async] [--wild 3000ms] [--leave 3000ms]
 *
 * holds the memory and runs a fixed amount of work that takes about the
 * duration when it is alone, on that share of the GPU's SMs: one block for each
 * SM, of which the hardware gives every SM one as long as some are free. So SM
 * activity ("at least one warp on the SM") is the share. Beside others the same
 * work takes longer. It needs the driver's libcuda.so.1 alone.
 *
 * kind is how the memory is asked for: plain, async, vmm or managed. wild is when a
 * kernel touches an address that is none. leave is when it exits by itself and waits for none
 * of its kernels, as a program with an error does. It says "ready" when it has its memory, and
 * at the end what it saw, as JSON. "result" is of all that its kernels computed, each
 * from what the one before left: two undisturbed runs of the same command have the same.
 * Ends with 0, with 1 if memory is refused (in PyTorch's words, which CARMA looks for),
 * with 2 for anything else.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The few calls of the CUDA driver API (cuda.h), by their versioned names. */
typedef int CUresult, CUdevice;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream, *CUevent;
typedef uint64_t CUdeviceptr, CUhandle;

/* cuda.h: CUmemAllocationProp and CUmemAccessDesc, for pinned memory of a device. */
struct location {
	int type, id;
};
struct prop {
	int type, handles;
	struct location at;
	void *win32;
	unsigned char flags[8];
};
struct access_desc {
	struct location at;
	int flags;
};

static struct {
	CUresult (*init)(unsigned);
	CUresult (*device)(CUdevice *, int);
	CUresult (*attribute)(int *, int, CUdevice);
	CUresult (*context)(CUcontext *, unsigned, CUdevice);
	CUresult (*info)(size_t *, size_t *);
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUresult (*async)(CUdeviceptr *, size_t, CUstream);
	CUresult (*managed)(CUdeviceptr *, size_t, unsigned);
	CUresult (*granularity)(size_t *, const struct prop *, int);
	CUresult (*create)(CUhandle *, size_t, const struct prop *, unsigned long long);
	CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
	CUresult (*map)(CUdeviceptr, size_t, size_t, CUhandle, unsigned long long);
	CUresult (*access)(CUdeviceptr, size_t, const struct access_desc *, size_t);
	CUresult (*set)(CUdeviceptr, unsigned char, size_t);
	CUresult (*copy)(void *, CUdeviceptr, size_t);
	CUresult (*module)(CUmodule *, const void *);
	CUresult (*function)(CUfunction *, CUmodule, const char *);
	CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
	CUresult (*event)(CUevent *, unsigned);
	CUresult (*record)(CUevent, CUstream);
	CUresult (*wait)(CUevent);
	CUresult (*synchronize)(void);
} cu;

enum {
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	ATTRIBUTE_CLOCK_RATE_KHZ = 13,
	ATTRIBUTE_SMS = 16,
	ATTRIBUTE_MAJOR = 75,
	ATTRIBUTE_MINOR = 76,
	THREADS = 128,
};

/*
 * A chain of n dependent multiply-adds a thread, 4 cycles each on Volta and later, from the thread's number in
 * the memory and back into it; and a store to an address that is none. x*x - 1.9 is chaotic: one bit that is another
 * changes all that follow. The same text for each target: a driver that no longer takes the oldest takes a later one.
 */
#define PTX(version, target) \
	".version " version "\n.target " target "\n.address_size 64\n" \
	".visible .entry work(.param .u64 n, .param .u64 out)\n{\n" \
	".reg .u64 %rd<4>; .reg .u32 %r<5>; .reg .f32 %f<4>; .reg .pred %p;\n" \
	"ld.param.u64 %rd1, [n]; ld.param.u64 %rd2, [out];\n" \
	"mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r1, %r2, %r3;\n" \
	"mul.wide.u32 %rd3, %r4, 4; add.u64 %rd2, %rd2, %rd3;\n" \
	"ld.global.f32 %f1, [%rd2]; cvt.rn.f32.u32 %f3, %r4; mov.f32 %f2, 0f33D6BF95;\n" \
	"fma.rn.f32 %f1, %f3, %f2, %f1; mov.f32 %f2, 0fBFF33333;\n" \
	"again: fma.rn.f32 %f1, %f1, %f1, %f2; fma.rn.f32 %f1, %f1, %f1, %f2;\n" \
	"fma.rn.f32 %f1, %f1, %f1, %f2; fma.rn.f32 %f1, %f1, %f1, %f2;\n" \
	"sub.u64 %rd1, %rd1, 4; setp.gt.s64 %p, %rd1, 0; @%p bra again;\n" \
	"st.global.f32 [%rd2], %f1; ret;\n}\n" \
	".visible .entry wild()\n{\n.reg .u64 %rd<2>; .reg .f32 %f<2>;\n" \
	"mov.u64 %rd1, 8; mov.f32 %f1, 0f3F800000; st.global.f32 [%rd1], %f1; ret;\n}\n"

/* The newest first. ISA versions: those in which a target was new, or later. */
static const struct {
	int capability;
	const char *name, *text;
} ptx[] = {
	{ 100, "sm_100", PTX("8.6", "sm_100") }, { 90, "sm_90", PTX("7.8", "sm_90") }, { 80, "sm_80", PTX("7.0", "sm_80") },
	{ 70, "sm_70", PTX("6.0", "sm_70") },	 { 60, "sm_60", PTX("6.0", "sm_60") },
};

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
	*(void **)&cu.info = find(lib, "cuMemGetInfo_v2");
	*(void **)&cu.alloc = find(lib, "cuMemAlloc_v2");
	*(void **)&cu.async = find(lib, "cuMemAllocAsync");
	*(void **)&cu.managed = find(lib, "cuMemAllocManaged");
	*(void **)&cu.granularity = find(lib, "cuMemGetAllocationGranularity");
	*(void **)&cu.create = find(lib, "cuMemCreate");
	*(void **)&cu.reserve = find(lib, "cuMemAddressReserve");
	*(void **)&cu.map = find(lib, "cuMemMap");
	*(void **)&cu.access = find(lib, "cuMemSetAccess");
	*(void **)&cu.set = find(lib, "cuMemsetD8_v2");
	*(void **)&cu.copy = find(lib, "cuMemcpyDtoH_v2");
	*(void **)&cu.module = find(lib, "cuModuleLoadData");
	*(void **)&cu.function = find(lib, "cuModuleGetFunction");
	*(void **)&cu.launch = find(lib, "cuLaunchKernel");
	*(void **)&cu.event = find(lib, "cuEventCreate");
	*(void **)&cu.record = find(lib, "cuEventRecord");
	*(void **)&cu.wait = find(lib, "cuEventSynchronize");
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

/* What PyTorch's expandable segments do: handles of pinned memory, mapped into a reserved range. */
static CUresult vmm(CUdeviceptr *at, size_t bytes, CUdevice device)
{
	struct prop prop = { .type = 1, .at = { 1, device } };
	struct access_desc both = { .at = { 1, device }, .flags = 3 };
	CUhandle handle;
	size_t grain;

	must(cu.granularity(&grain, &prop, 0), "cuMemGetAllocationGranularity");
	bytes = (bytes + grain - 1) / grain * grain;
	CUresult rc = cu.create(&handle, bytes, &prop, 0);
	if (rc)
		return rc;
	must(cu.reserve(at, bytes, 0, 0, 0), "cuMemAddressReserve");
	must(cu.map(*at, bytes, 0, handle, 0), "cuMemMap");
	return cu.access(*at, bytes, &both, 1);
}

static CUresult get(const char *kind, CUdeviceptr *at, size_t bytes, CUdevice device)
{
	if (!strcmp(kind, "plain"))
		return cu.alloc(at, bytes);
	if (!strcmp(kind, "vmm"))
		return vmm(at, bytes, device);
	CUresult rc = !strcmp(kind, "async") ? cu.async(at, bytes, NULL) : cu.managed(at, bytes, 1);
	if (rc == 0 && !strcmp(kind, "async"))
		rc = cu.synchronize();
	/* Managed memory takes none of the device before it is touched there. */
	if (rc == 0 && !strcmp(kind, "managed"))
		rc = cu.set(*at, 0, bytes);
	return rc;
}

/* FNV-1a */
static uint64_t sum(const unsigned char *text, size_t n)
{
	uint64_t h = 14695981039346656037u;

	for (size_t i = 0; i < n; i++)
		h = (h ^ text[i]) * 1099511628211u;
	return h;
}

int main(int argc, char **argv)
{
	long mem = 0, smact = 0, duration = 0, wild_at = 0, leave_at = 0;
	const char *kind = "plain", *target = "";
	static unsigned char host[1024 * THREADS * 4];
	uint64_t n;
	int sms, khz, major, minor, blocks;
	CUdevice device;
	CUcontext context;
	CUdeviceptr memory;
	CUmodule module = NULL;
	CUfunction work, wild;
	CUevent event[2];
	size_t total, before, after;
	void *arguments[] = { &n, &memory };

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--mem"))
			mem = number(argv[i + 1], "M");
		else if (!strcmp(argv[i], "--smact"))
			smact = number(argv[i + 1], "");
		else if (!strcmp(argv[i], "--duration"))
			duration = number(argv[i + 1], "ms");
		else if (!strcmp(argv[i], "--wild"))
			wild_at = number(argv[i + 1], "ms");
		else if (!strcmp(argv[i], "--leave"))
			leave_at = number(argv[i + 1], "ms");
		else if (!strcmp(argv[i], "--kind"))
			kind = argv[i + 1];
	}
	if (!mem || !smact || smact > 100 || !duration ||
	    (strcmp(kind, "plain") && strcmp(kind, "async") && strcmp(kind, "vmm") && strcmp(kind, "managed"))) {
		fprintf(stderr, "usage: gpuload --mem MIBM --smact PERCENT --duration Nms "
				"[--kind plain|async|vmm|managed] [--wild Nms] [--leave Nms]\n");
		return 2;
	}
	load();
	must(cu.init(0), "cuInit");
	must(cu.device(&device, 0), "cuDeviceGet");
	must(cu.attribute(&sms, ATTRIBUTE_SMS, device), "count SMs");
	must(cu.attribute(&khz, ATTRIBUTE_CLOCK_RATE_KHZ, device), "clock rate");
	must(cu.attribute(&major, ATTRIBUTE_MAJOR, device), "compute capability");
	must(cu.attribute(&minor, ATTRIBUTE_MINOR, device), "compute capability");
	must(cu.context(&context, 0, device), "cuCtxCreate");
	must(cu.info(&before, &total), "cuMemGetInfo");
	CUresult rc = get(kind, &memory, (size_t)mem << 20, device);
	if (rc == CUDA_ERROR_OUT_OF_MEMORY) {
		fprintf(stderr, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %ld.00 MiB.\n", mem);
		return 1;
	}
	must(rc, "allocate memory");
	must(cu.info(&after, &total), "cuMemGetInfo");
	rc = 1;
	for (size_t i = 0; rc && i < sizeof(ptx) / sizeof(*ptx); i++) {
		if (ptx[i].capability > major * 10 + minor)
			continue;
		rc = cu.module(&module, ptx[i].text);
		target = ptx[i].name;
	}
	must(rc, "load PTX");
	must(cu.function(&work, module, "work"), "find kernel");
	must(cu.function(&wild, module, "wild"), "find kernel");
	must(cu.event(&event[0], 0), "cuEventCreate");
	must(cu.event(&event[1], 0), "cuEventCreate");
	blocks = (int)(sms * smact + 50) / 100;
	if (blocks < 1)
		blocks = 1;
	if (blocks > 1024)
		blocks = 1024;
	size_t bytes = (size_t)blocks * THREADS * 4;
	must(cu.set(memory, 0, bytes), "cuMemsetD8");
	must(cu.synchronize(), "cuCtxSynchronize");
	printf("ready\n");
	fflush(stdout);
	/* Kernels of 10 ms: 4 cycles for each of n steps. Work is counted, not time. */
	n = (uint64_t)khz * 10 / 4;
	for (long ms = 0, batch = 0; ms < duration; ms += 10) {
		if (leave_at && ms >= leave_at)
			return 0;
		if (wild_at && ms >= wild_at) {
			must(cu.launch(wild, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "launch");
			wild_at = 0;
		}
		must(cu.launch(work, (unsigned)blocks, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL), "launch");
		/* One batch of 300 ms is queued while another runs: the SMs stay busy in between. */
		if (ms % 300 == 290) {
			must(cu.record(event[batch % 2], NULL), "cuEventRecord");
			batch++;
			if (batch > 1)
				must(cu.wait(event[batch % 2]), "run kernel");
		}
	}
	must(cu.copy(host, memory, bytes), "run kernel");
	printf("{\"ptx\":\"%s\",\"sms\":%d,\"khz\":%d,\"total_mib\":%zu,\"free_before_mib\":%zu,\"free_after_mib\":%zu,"
	       "\"result\":\"%016llx\"}\n",
	       target, sms, khz, total >> 20, before >> 20, after >> 20, (unsigned long long)sum(host, bytes));
	return 0;
}
