// SPDX-License-Identifier: Apache-2.0

package oomscan

import (
	"fmt"
	"math"
)

// Kind is what a message tells about the end of a job.
type Kind string

// The kinds. Only GPUMemory is a reason to requeue a job: alone on a GPU it
// has more of what it lacked. The others are told apart so that a report can
// name them, and so that they are not taken for it.
const (
	GPUMemory  Kind = "gpu-memory"  // no memory left on the GPU, or beyond the job's own limit
	HostMemory Kind = "host-memory" // the node's memory or the job's cgroup
	MPS        Kind = "mps"         // the MPS server ended the client, or is not there: a victim
	GPUFault   Kind = "gpu-fault"   // illegal access, failed assertion, ECC
)

// Signature is one kind of message: a stretch of text that the named framework
// prints and that nothing prints by accident.
type Signature struct {
	ID        string // stable; stored in records
	Framework string
	Kind      Kind
	text      string
	with      string   // must stand on the same line, behind text; empty: nothing more
	unless    []string // makes the line something else
}

// onHost are words of messages about pinned or ordinary memory of the node.
var onHost = []string{"on host", "cuda_host_bfc", "gpu_host_bfc", "device:CPU:", "by allocator cpu",
	"by allocator mklcpu", "cudaHostAlloc", "cudaMallocHost", "host memory"}

// harmless are words of messages that say themselves that the program goes on: caches
// that make do with less, autotuners that drop one choice, loops that drop a batch.
var harmless = []string{"this is not a failure", "Ignoring this choice", "for benchmark choice", "skipping batch",
	"Skipping batch", "will be ignored",
	"alling back to", "etrying with", "using CPU"}

// Signatures in the order in which they are tried at one place of the text.
// testdata/oom and testdata/other hold messages as they were printed, with the
// versions. cublasCreate's CUBLAS_STATUS_NOT_INITIALIZED is none: a failed
// assertion on the device gives it as well.
var Signatures = []Signature{
	{"pytorch", "PyTorch 2.5 and later", GPUMemory, "torch.OutOfMemoryError: ", "", harmless},
	{"pytorch", "PyTorch 1.13 to 2.4", GPUMemory, "torch.cuda.OutOfMemoryError: ", "", harmless},
	{"pytorch", "PyTorch, as rich prints it", GPUMemory, "OutOfMemoryError: CUDA out of memory", "", harmless},
	{"pytorch", "PyTorch of any version", GPUMemory, "CUDA out of memory. Tried to allocate", "", harmless},
	{"pytorch", "PyTorch before 1.0", GPUMemory, "cuda runtime error (2) : out of memory", "", nil},
	{"vllm", "vLLM", GPUMemory, "No available memory for the cache blocks", "", nil},
	{"vllm", "vLLM 0.9 and later", GPUMemory, "is less than desired GPU memory utilization", "", nil},
	{"vllm", "vLLM", GPUMemory, "larger than the available KV cache memory", "", nil},
	{"vllm", "vLLM before 0.8", GPUMemory, "larger than the maximum number of tokens that can be stored in KV cache", "",
		nil},
	{"sglang", "SGLang", GPUMemory, "Not enough memory. Please try to increase --mem-fraction-static", "", nil},
	{"sglang", "SGLang", GPUMemory, "Capture cuda graph failed: CUDA out of memory", "", nil},
	{"tgi", "text-generation-inference", GPUMemory, "Not enough memory to handle", "prefill tokens", nil},
	{"tritonserver", "Triton Inference Server", GPUMemory,
		"UNAVAILABLE: Internal: onnx runtime error 6: Exception during initialization: ", "AllocateRawInternal", nil},
	{"tensorflow", "TensorFlow", GPUMemory, "OOM when allocating tensor", "", onHost},
	{"tensorflow", "TensorFlow 1.15 and later", GPUMemory, "Dst tensor is not initialized", "", nil},
	{"tensorflow", "TensorFlow", GPUMemory, "EigenAllocator for GPU ran out of memory", "", nil},
	{"tensorflow", "TensorFlow", GPUMemory, "_bfc) ran out of memory trying to allocate", "", append(onHost, harmless...)},
	{"jax", "JAX, TensorFlow 2.17 and later", GPUMemory, "RESOURCE_EXHAUSTED: Out of memory", "", onHost},
	{"jax", "JAX before 0.2.20", GPUMemory, "Resource exhausted: Out of memory", "", onHost},
	{"jax", "JAX", GPUMemory, "RESOURCE_EXHAUSTED: Failed to allocate request for", "", onHost},
	{"jax", "JAX before 0.2.20", GPUMemory, "Resource exhausted: Failed to allocate request for", "", onHost},
	{"jax", "JAX", GPUMemory, "INTERNAL: Failed to allocate ", "bytes for new constant", nil},
	{"cupy", "CuPy", GPUMemory, "Out of memory allocating", "(allocated so far", nil},
	{"cupy", "CuPy before 6", GPUMemory, "cupy.cuda.memory.OutOfMemoryError: out of memory to allocate", "", nil},
	{"onnxruntime", "ONNX Runtime", GPUMemory, "Failed to allocate memory for requested buffer of size", "", nil},
	{"onnxruntime", "ONNX Runtime", GPUMemory, "CUDA failure 2: out of memory", "", onHost},
	{"nccl", "NCCL", GPUMemory, "Cuda failure", "out of memory'", nil},
	{"triton", "Triton", GPUMemory, "Triton Error [CUDA]: out of memory", "", nil},
	{"tensorrt", "TensorRT", GPUMemory, "Cuda Runtime (out of memory)", "", nil},
	{"rmm", "RAPIDS RMM", GPUMemory, "out_of_memory: CUDA error", "", nil},
	{"cublas", "cuBLAS", GPUMemory, "CUBLAS_STATUS_ALLOC_FAILED", "", nil},
	{"cudnn", "cuDNN", GPUMemory, "CUDNN_STATUS_ALLOC_FAILED", "", nil},
	{"cudnn", "cuDNN 9", GPUMemory, "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "", nil},
	{"cusolver", "cuSOLVER", GPUMemory, "CUSOLVER_STATUS_ALLOC_FAILED", "", nil},
	{"cusparse", "cuSPARSE", GPUMemory, "CUSPARSE_STATUS_ALLOC_FAILED", "", nil},
	{"cufft", "cuFFT", GPUMemory, "CUFFT_ALLOC_FAILED", "", nil},
	{"cuda", "CUDA driver", GPUMemory, "CUDA_ERROR_OUT_OF_MEMORY", "", onHost},
	{"cuda", "CUDA runtime", GPUMemory, "cudaErrorMemoryAllocation", "", onHost},
	{"cuda", "CUDA runtime, as frameworks print it", GPUMemory, "CUDA error: out of memory", "", onHost},
	{"cuda", "PyTorch with expandable segments", GPUMemory, "CUDA driver error: out of memory", "", nil},
	{"cuda", "CTranslate2", GPUMemory, "CUDA failed with error out of memory", "", nil},
	{"cuda", "spconv", GPUMemory, "cuda failed with error 2 out of memory", "", nil},
	{"cuda", "llama.cpp, MXNet", GPUMemory, "cudaMalloc failed: out of memory", "", nil},
	{"cuda", "Caffe", GPUMemory, "cudaSuccess (2 vs. 0)", "out of memory", nil},
	{"cuda", "AMReX", GPUMemory, "CUDA error 2 in file", "out of memory", nil},
	{"cuda", "SPECFEM3D", GPUMemory, "CUDA error !!!!! <out of memory>", "", nil},
	{"paddle", "PaddlePaddle", GPUMemory, "Out of memory error on GPU ", "Cannot allocate", nil},
	{"catboost", "CatBoost", GPUMemory, "NCudaLib::TOutOfMemoryError", "", nil},

	{"oom-kill", "slurmstepd", HostMemory, "oom-kill event", "", nil},
	{"oom-kill", "slurmstepd 21.08 and later", HostMemory, "oom_kill event", "", nil},
	{"host-memory", "PyTorch", HostMemory, "DefaultCPUAllocator: ", "", nil},
	{"host-memory", "NumPy", HostMemory, "_ArrayMemoryError: ", "", nil},
	{"host-memory", "PyTorch's loader", HostMemory, "is killed by signal: Killed", "", nil},
	{"host-memory", "TensorFlow", HostMemory, "OOM when allocating tensor", "by allocator cpu", nil},
	{"mps", "CUDA runtime", MPS, "MPS client has been terminated", "", nil},
	{"mps", "CUDA runtime", MPS, "cudaErrorMps", "", nil},
	{"mps", "CUDA driver", MPS, "CUDA_ERROR_MPS_", "", nil},
	{"mps", "CUDA runtime", MPS, "MPS client failed to connect", "", nil},
	{"mps", "CUDA runtime", MPS, "between the MPS server and the MPS client failed", "", nil},
	{"gpu-fault", "CUDA runtime", GPUFault, "an illegal memory access was encountered", "", nil},
	{"gpu-fault", "CUDA driver", GPUFault, "CUDA_ERROR_ILLEGAL_ADDRESS", "", nil},
	{"gpu-fault", "CUDA runtime", GPUFault, "device-side assert triggered", "", nil},
	{"gpu-fault", "CUDA runtime", GPUFault, "unspecified launch failure", "", nil},
	{"gpu-fault", "CUDA runtime", GPUFault, "uncorrectable ECC error", "", nil},
}

// The weights of messages: the heaviest in a text is what counts. slurmstepd's word that
// the kernel killed a process is about the end itself, and no GPU has more of the node's
// memory. A server that does not start says why after the error that it met. What
// MPS clients and illegal accesses print is often what other ranks say after one of
// them ran out of memory. What a program made do without is the last.
const (
	backOff = iota + 1
	ofOthers
	ofMemory
	ofStart
	ofKernel
)

func (s Signature) weight() int {
	switch {
	case s.ID == "oom-kill":
		return ofKernel
	case startOf[s.ID] != (start{}):
		return ofStart
	case s.Kind == GPUMemory:
		return ofMemory
	}
	return ofOthers
}

// start is what tells a server that takes a part of the whole GPU at its start to take
// less: with its setting's name as users write it.
type start struct{ program, setting string }

// A server of Triton has no such setting for what its models take.
var startOf = map[string]start{
	"vllm":         {"vLLM", "gpu_memory_utilization"},
	"sglang":       {"SGLang", "mem_fraction_static"},
	"tgi":          {"text-generation-inference", "cuda_memory_fraction"},
	"tritonserver": {"Triton", ""},
}

// Advice says of the refusal of a server to start what would have let it start with
// reserveMiB, which leaves it a fraction of the GPU; empty: nothing is known that would.
func Advice(id string, reserveMiB int64, fraction float64) string {
	s := startOf[id]
	switch {
	case s == (start{}):
		return ""
	case s.setting == "":
		return fmt.Sprintf("%s did not start with %d MiB: load fewer models or instances, or book more", s.program,
			reserveMiB)
	}
	return fmt.Sprintf("%s takes a part of the whole GPU: set %s to at most %.2f, or book more", s.program, s.setting,
		math.Floor(fraction*100)/100)
}
