/* SPDX-License-Identifier: Apache-2.0 */
/* One node's GPUs and the processes on them at one moment. Pure data and arithmetic: no clock, no locks. */
#ifndef SIMGPU_SNAPSHOT_H
#define SIMGPU_SNAPSHOT_H

#include <stdbool.h>
#include <stdint.h>

#include "law.h"
#include "model.h"

#define SIM_MAX_GPUS 16
#define SIM_MAX_CLIENTS 128 /* processes per GPU */
#define SIM_MAX_MIG 7	    /* instances per GPU */
#define SIM_MAX_UNITS (SIM_MAX_GPUS * SIM_MAX_MIG)
#define SIM_MAX_PROCS (SIM_MAX_GPUS * SIM_MAX_CLIENTS)

enum sim_kind { SIM_JOB, SIM_FOREIGN, SIM_MPS_SERVER };

/* Why a process must end, as CUDA tells it: set by others, obeyed by the process itself. */
enum sim_stop { SIM_RUN, SIM_STOP_FAULT, SIM_STOP_TERMINATED, SIM_STOP_SERVER_GONE };

enum sim_fault {
	SIM_OK,
	SIM_HANG,
	SIM_LOST,
	SIM_ERROR,
	SIM_GARBAGE_PIDS,
	SIM_GARBAGE_MEMORY,
	SIM_SILENT_GPM,
	SIM_NAN_GPM,
	SIM_ZERO_SMACT,
	SIM_NO_ACTIVITY,
	SIM_NO_SHARES,
	SIM_NO_LIMITS,
};

/* What nvmlDeviceGetRemappedRows tells. */
enum sim_rows { SIM_ROWS_OK, SIM_ROWS_PENDING, SIM_ROWS_FAILED };

/* Of a server with a fault by kernels of a client that has gone: not logged yet, and not over without clients. */
#define SIM_FAULT_UNTOLD 2

#define SIM_XIDS 8 /* that wait for readers of events */

/* NVML's numbers for the compute mode. */
enum sim_compute_mode { SIM_SHARED = 0, SIM_PROHIBITED = 2, SIM_EXCLUSIVE_PROCESS = 3 };

/* A process's hold on one unit. limit: its MPS pinned memory limit in bytes, 0 for none. */
struct sim_use {
	int32_t unit;
	int32_t pad;
	uint64_t bytes;
	uint64_t limit;
};

struct sim_proc {
	int32_t pid;
	uint32_t uid;
	uint64_t start; /* clock ticks since boot: tells a reused pid from the old one */
	uint32_t slot;	/* stays the same while the process lives; index into the heartbeats */
	uint32_t kind;
	uint32_t stop;
	int32_t server;	   /* pid of its MPS server, 0 for none; a server names itself */
	uint32_t faulted;  /* MPS server only: in state FAULT; see SIM_FAULT_UNTOLD */
	uint32_t limit_pct; /* CUDA_MPS_ACTIVE_THREAD_PERCENTAGE in force, 100 without */
	double demand;	   /* SM activity when alone, 0 to 1, before limit_pct */
	double work;	   /* GPU-alone seconds done */
	double target;	   /* GPU-alone seconds to do; 0: no end */
	double ended;	   /* when work reached target, 0 before */
	uint32_t uses;
	uint32_t queues; /* kernels of the process wait on the GPU: an end of the process before the kernels have run is a fault */
	char name[24];
	struct sim_use use[SIM_MAX_GPUS];
};

/* Where kernels run: a whole GPU, or one MIG instance. share: its part of the GPU's SMs. */
struct sim_unit {
	uint32_t gpu;
	uint32_t mig; /* MIG: instance number + 1; 0 for a whole GPU */
	uint64_t bytes;
	double share;
	double smact;	 /* integral of SM activity, in seconds */
	double resident; /* integral of kernel residency, in seconds */
	char uuid[44];
	char profile[16];
};

struct sim_gpu {
	uint32_t first_unit, units;
	uint32_t compute_mode;
	uint32_t fault;
	int32_t fault_code;  /* SIM_ERROR: the NVML code */
	double fault_until;  /* SIM_HANG: its end, 0 for none */
	uint32_t rows;
	uint32_t recovery; /* NVML's number of the recovery action */
	uint32_t xids;	   /* that have been, ever; number n is xid[n % SIM_XIDS] */
	uint32_t xid[SIM_XIDS];
	double joules;
	char uuid[44];
};

#define SIM_MAX_LIMITS 64
#define SIM_GROUP_PATH 256

/* A limit of memory on one GPU for the processes of a cgroup; dir "": a free place. */
struct sim_limit {
	uint32_t gpu;
	uint32_t root; /* so much of dir is the mount point */
	uint64_t ino;  /* another cgroup of the same name is not meant */
	uint64_t soft, hard;
	char dir[SIM_GROUP_PATH];
};

struct sim_snap {
	double now; /* simulated seconds since the state was made */
	uint32_t model, gpus, units, procs;
	struct sim_limit limit[SIM_MAX_LIMITS];
	struct sim_gpu gpu[SIM_MAX_GPUS];
	struct sim_unit unit[SIM_MAX_UNITS];
	struct sim_proc proc[SIM_MAX_PROCS]; /* the first procs are in use */
};

/* Copies only what is in use. */
void snap_copy(struct sim_snap *to, const struct sim_snap *from);

/* Moves time on to t: integrates energy, activity and work, ends jobs whose work is done at the exact moment. */
void snap_advance(struct sim_snap *s, double t);

/* Removes process i. The clients of a removed MPS server are told to stop. */
void snap_remove(struct sim_snap *s, uint32_t i);

/* The process with that pid or slot, or NULL. */
struct sim_proc *snap_by_pid(const struct sim_snap *s, int pid);
struct sim_proc *snap_by_slot(const struct sim_snap *s, uint32_t slot);

/* SM demand of a process now: 0 when it has no kernels to run. */
double snap_demand(const struct sim_proc *p);

/* Load of every unit now, and the rate of every process (GPU-alone seconds per second); either may be NULL. */
void snap_load(const struct sim_snap *s, struct law_load load[], double rate[]);

/* SM activity (0 to 1) of a whole GPU now, given the units' loads. */
double snap_gpu_smact(const struct sim_snap *s, uint32_t gpu, const struct law_load load[]);

/* Is the process on that GPU? Its bytes there are added to *bytes if that is not NULL. */
bool snap_on_gpu(const struct sim_snap *s, const struct sim_proc *p, uint32_t gpu, uint64_t *bytes);

/* Bytes in use by processes; on one unit or on a whole GPU. */
uint64_t snap_unit_used(const struct sim_snap *s, int unit);
uint64_t snap_gpu_used(const struct sim_snap *s, uint32_t gpu);

/* Is the process an MPS client (not a server)? */
bool snap_is_mps_client(const struct sim_proc *p);

#endif
