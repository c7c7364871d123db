/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library as a program sees it that opens it by path: every symbol that a binding may choose at load time, the
 * older versions of the calls, the size idiom, the faults. The Go test beside checks the values through go-nvml.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "client.h"
#include "nvml_abi.h"

static void *lib;

#define CALL(name, ...) (((nvmlReturn_t(*)())symbol(#name))(__VA_ARGS__))

static void *symbol(const char *name)
{
	void *p = dlsym(lib, name);

	if (p == NULL) {
		printf("no symbol %s\n", name);
		exit(1);
	}
	return p;
}

/* What go-nvml's updateVersionedSymbols() looks for. */
static void test_versioned_symbols(void)
{
	static const char *const name[] = {
		"nvmlInit_v2", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetCount_v2",
		"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetNvLinkRemotePciInfo_v2",
		"nvmlDeviceGetGridLicensableFeatures_v2", "nvmlDeviceGetGridLicensableFeatures_v3",
		"nvmlDeviceGetGridLicensableFeatures_v4", "nvmlEventSetWait_v2", "nvmlDeviceGetAttributes_v2",
		"nvmlComputeInstanceGetInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v2",
		"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2",
		"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2",
		"nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
		"nvmlVgpuInstanceGetLicenseInfo_v2", "nvmlDeviceGetDriverModel_v2",
	};

	for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++)
		CHECK(dlsym(lib, name[i]) != NULL);
	CHECK(dlsym(lib, "sim_open") == NULL);
}

static void test_without_state(void)
{
	unsetenv(SIM_STATE_ENV);
	CHECK(CALL(nvmlInit_v2) == NVML_ERROR_DRIVER_NOT_LOADED);
	CHECK(CALL(nvmlDeviceGetCount_v2, NULL) == NVML_ERROR_UNINITIALIZED);
	CHECK(CALL(nvmlShutdown) == NVML_ERROR_UNINITIALIZED);
}

static nvmlDevice_t device(unsigned int index)
{
	nvmlDevice_t d = NULL;

	CHECK(CALL(nvmlDeviceGetHandleByIndex_v2, index, &d) == NVML_SUCCESS);
	return d;
}

static void test_old_versions(void)
{
	nvmlDevice_t d = NULL, e = NULL;
	unsigned int count = 0;
	nvmlPciInfo_t pci;
	char name[96];

	CHECK(CALL(nvmlInit) == NVML_SUCCESS);
	CHECK(CALL(nvmlDeviceGetCount, &count) == NVML_SUCCESS && count == 4);
	CHECK(CALL(nvmlDeviceGetHandleByIndex, 1, &d) == NVML_SUCCESS);
	CHECK(CALL(nvmlDeviceGetHandleByIndex, 4, &e) == NVML_ERROR_INVALID_ARGUMENT);
	CHECK(CALL(nvmlDeviceGetHandleByPciBusId, "0000:0F:00.0", &e) == NVML_SUCCESS && e == d);
	CHECK(CALL(nvmlDeviceGetHandleByPciBusId, "0f:00.0", &e) == NVML_SUCCESS && e == d);
	CHECK(CALL(nvmlDeviceGetHandleByPciBusId_v2, "nonsense", &e) == NVML_ERROR_INVALID_ARGUMENT);
	CHECK(CALL(nvmlDeviceGetHandleByPciBusId_v2, "0000:EE:00.0", &e) == NVML_ERROR_NOT_FOUND);
	/* The first versions must not write past the struct of their time. */
	memset(&pci, 0x7f, sizeof(pci));
	CHECK(CALL(nvmlDeviceGetPciInfo, d, &pci) == NVML_SUCCESS);
	CHECK(strcmp(pci.busIdLegacy, "0000:0F:00.0") == 0 && pci.pciSubSystemId == 0x7f7f7f7f);
	CHECK(CALL(nvmlDeviceGetPciInfo_v2, d, &pci) == NVML_SUCCESS);
	CHECK(pci.pciSubSystemId != 0x7f7f7f7f && pci.busId[0] == 0x7f);
	CHECK(CALL(nvmlDeviceGetPciInfo_v3, d, &pci) == NVML_SUCCESS && strcmp(pci.busId, "00000000:0F:00.0") == 0);
	CHECK(CALL(nvmlDeviceGetName, d, name, 5) == NVML_ERROR_INSUFFICIENT_SIZE);
	CHECK(CALL(nvmlDeviceGetIndex, (nvmlDevice_t)&count, &count) == NVML_ERROR_INVALID_ARGUMENT);
	CHECK(CALL(nvmlDeviceGetDriverModel_v2, d, NULL, NULL) == NVML_ERROR_NOT_SUPPORTED);
	CHECK(CALL(nvmlShutdown) == NVML_SUCCESS);
}

static void test_size_idiom(struct sim *sim)
{
	struct sim_proc p = { .demand = 0.5, .limit_pct = 100, .uses = 1, .kind = SIM_FOREIGN, .name = "test" };
	struct client_refusal why;
	uint32_t slot[3];
	nvmlProcessInfo_v1_t one[3];
	nvmlProcessInfo_v2_t two[3];
	unsigned int n = 0;
	nvmlDevice_t d = device(0);

	CHECK(CALL(nvmlDeviceGetComputeRunningProcesses_v3, d, &n, NULL) == NVML_SUCCESS && n == 0);
	for (int i = 0; i < 3; i++) {
		CHECK(client_join(sim, &p, &slot[i]) == CLIENT_OK);
		CHECK(client_resize(sim, slot[i], (uint64_t)(i + 1) << 30, &why) == CLIENT_OK);
	}
	CHECK(CALL(nvmlDeviceGetComputeRunningProcesses_v3, d, &n, NULL) == NVML_ERROR_INSUFFICIENT_SIZE && n == 3);
	n = 2;
	memset(two, 0, sizeof(two));
	CHECK(CALL(nvmlDeviceGetComputeRunningProcesses_v2, d, &n, two) == NVML_ERROR_INSUFFICIENT_SIZE && n == 3);
	CHECK(two[2].pid == 0);
	CHECK(CALL(nvmlDeviceGetComputeRunningProcesses_v2, d, &n, two) == NVML_SUCCESS && n == 3);
	CHECK(two[2].usedGpuMemory == 3ULL << 30 && two[2].gpuInstanceId == 0xFFFFFFFF);
	CHECK(CALL(nvmlDeviceGetComputeRunningProcesses, d, &n, one) == NVML_SUCCESS);
	CHECK(one[1].pid == (unsigned int)getpid() && one[1].usedGpuMemory == 2ULL << 30);
	n = 3;
	CHECK(CALL(nvmlDeviceGetGraphicsRunningProcesses, d, &n, one) == NVML_SUCCESS && n == 0);
	n = 3;
	CHECK(CALL(nvmlDeviceGetMPSComputeRunningProcesses, d, &n, one) == NVML_SUCCESS && n == 0);
	n = 3;
	CHECK(CALL(nvmlDeviceGetComputeRunningProcesses_v3, d, &n, NULL) == NVML_ERROR_INVALID_ARGUMENT);
	for (int i = 0; i < 3; i++)
		client_leave(sim, slot[i]);
}

static void set_fault(struct sim *sim, enum sim_fault fault, int code)
{
	struct sim_gpu *g = &sim_begin(sim)->gpu[0];

	g->fault = fault;
	g->fault_code = code;
	g->fault_until = 0.0;
	sim_commit(sim, false);
}

static atomic_int hung;

static void *call_on_a_hung_gpu(void *d)
{
	unsigned int mw;

	CHECK(CALL(nvmlDeviceGetPowerUsage, (nvmlDevice_t)d, &mw) == NVML_SUCCESS);
	hung = 0;
	return NULL;
}

static void test_faults(struct sim *sim)
{
	struct timespec ts = { 0, 100 * 1000 * 1000 };
	nvmlDevice_t d = device(0), other = device(1), handle;
	unsigned int mw;
	nvmlMemory_t m;
	pthread_t t;

	set_fault(sim, SIM_LOST, 0);
	CHECK(CALL(nvmlDeviceGetPowerUsage, d, &mw) == NVML_ERROR_GPU_IS_LOST);
	CHECK(CALL(nvmlDeviceGetHandleByIndex_v2, 0, &handle) == NVML_ERROR_GPU_IS_LOST);
	CHECK(CALL(nvmlDeviceGetPowerUsage, other, &mw) == NVML_SUCCESS);
	set_fault(sim, SIM_ERROR, NVML_ERROR_UNKNOWN);
	CHECK(CALL(nvmlDeviceGetMemoryInfo, d, &m) == NVML_ERROR_UNKNOWN);
	CHECK(CALL(nvmlDeviceGetHandleByIndex_v2, 0, &handle) == NVML_SUCCESS);
	set_fault(sim, SIM_GARBAGE_MEMORY, 0);
	CHECK(CALL(nvmlDeviceGetMemoryInfo, d, &m) == NVML_SUCCESS && m.free == 0 && m.used > m.total);

	set_fault(sim, SIM_HANG, 0);
	hung = 1;
	CHECK(pthread_create(&t, NULL, call_on_a_hung_gpu, d) == 0);
	nanosleep(&ts, NULL);
	CHECK(hung == 1);
	/* The other GPUs answer meanwhile. */
	CHECK(CALL(nvmlDeviceGetPowerUsage, other, &mw) == NVML_SUCCESS);
	set_fault(sim, SIM_OK, 0);
	pthread_join(t, NULL);
	CHECK(hung == 0);
}

int main(int argc, char **argv)
{
	char path[4096];

	if (argc != 3 || (lib = dlopen(argv[1], RTLD_NOW)) == NULL) {
		printf("nvml_test: %s\n", argc == 3 ? dlerror() : "usage: nvml_test LIBRARY DIRECTORY");
		return 2;
	}
	snprintf(path, sizeof(path), "%s/nvml-state", argv[2]);
	CHECK(sim_create(path, model_find("dgx-a100"), 4, 1.0, NULL, 0) == 0);
	test_versioned_symbols();
	test_without_state();
	setenv(SIM_STATE_ENV, path, 1);
	test_old_versions();
	struct sim *sim = sim_open(NULL);

	CHECK(CALL(nvmlInitWithFlags, 0) == NVML_SUCCESS);
	test_size_idiom(sim);
	test_faults(sim);
	CHECK(CALL(nvmlShutdown) == NVML_SUCCESS);
	sim_close(sim);
	dlclose(lib);
	return report("nvml_test");
}
