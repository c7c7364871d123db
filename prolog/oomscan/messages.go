// SPDX-License-Identifier: Apache-2.0

package oomscan

import "slices"

// Signatures in the order in which they are tried at one place of the text. testdata holds messages as
// they were printed, with the versions.
var Signatures = slices.Concat(graded(Strong, strong), graded(Weak, weak), graded(Disguise, disguises),
	graded(Hint, advising), graded("", others))

func graded(g Grade, list []message) []Signature {
	all := make([]Signature, len(list))
	for i, m := range list {
		all[i] = Signature{m, g}
	}
	return all
}

// strong are frameworks' own last words.
var strong = []message{
	{"pytorch", "PyTorch 2.5 and later", GPUMemory, "torch.outofmemoryerror: ", "", harmless},
	{"pytorch", "PyTorch 1.13 to 2.4", GPUMemory, "torch.cuda.outofmemoryerror: ", "", harmless},
	{"pytorch", "PyTorch, as rich prints it", GPUMemory, "outofmemoryerror: cuda out of memory", "", harmless},
	{"pytorch", "PyTorch of any version", GPUMemory, "cuda out of memory. tried to allocate", "", harmless},
	{"pytorch", "PyTorch before 1.0", GPUMemory, "cuda runtime error (2) : out of memory", "", nil},
	{"vllm", "vLLM", GPUMemory, "no available memory for the cache blocks", "", nil},
	{"vllm", "vLLM 0.9 and later", GPUMemory, "is less than desired gpu memory utilization", "", nil},
	{"vllm", "vLLM", GPUMemory, "larger than the available kv cache memory", "", nil},
	{"vllm", "vLLM before 0.8", GPUMemory, "larger than the maximum number of tokens that can be stored in kv cache", "",
		nil},
	{"sglang", "SGLang", GPUMemory, "not enough memory. please try to increase --mem-fraction-static", "", nil},
	{"sglang", "SGLang", GPUMemory, "capture cuda graph failed: cuda out of memory", "", nil},
	{"tgi", "text-generation-inference", GPUMemory, "not enough memory to handle", "prefill tokens", nil},
	{"tritonserver", "Triton Inference Server", GPUMemory,
		"unavailable: internal: onnx runtime error 6: exception during initialization: ", "allocaterawinternal", nil},
	{"tensorflow", "TensorFlow", GPUMemory, "oom when allocating tensor", "", onHost},
	{"tensorflow", "TensorFlow 1.15 and later", GPUMemory, "dst tensor is not initialized", "", nil},
	{"tensorflow", "TensorFlow", GPUMemory, "eigenallocator for gpu ran out of memory", "", nil},
	{"tensorflow", "TensorFlow", GPUMemory, "_bfc) ran out of memory trying to allocate", "", append(onHost, harmless...)},
	{"tensorflow", "TensorFlow 2.4 and later", GPUMemory, "resource exhausted: failed to allocate memory", "", onHost},
	{"tensorflow", "TensorFlow 2.7 and later", GPUMemory, "resourceexhaustederror: failed to allocate memory", "", onHost},
	{"tensorflow", "TensorFlow 1 and 2", GPUMemory, "cuda runtime implicit initialization on gpu:", "out of memory", nil},
	{"jax", "JAX, TensorFlow 2.17 and later", GPUMemory, "resource_exhausted: out of memory", "", onHost},
	{"jax", "JAX before 0.2.20", GPUMemory, "resource exhausted: out of memory", "", onHost},
	{"jax", "TensorFlow 2.17 and later", GPUMemory, "out of memory while trying to allocate ", " bytes", onHost},
	{"jax", "JAX", GPUMemory, "resource_exhausted: failed to allocate request for", "", onHost},
	{"jax", "JAX before 0.2.20", GPUMemory, "resource exhausted: failed to allocate request for", "", onHost},
	{"jax", "JAX", GPUMemory, "internal: failed to allocate ", "bytes for new constant", nil},
	{"cupy", "CuPy", GPUMemory, "out of memory allocating", "(allocated so far", nil},
	{"cupy", "CuPy before 6", GPUMemory, "cupy.cuda.memory.outofmemoryerror: out of memory to allocate", "", nil},
	{"onnxruntime", "ONNX Runtime", GPUMemory, "failed to allocate memory for requested buffer of size", "", nil},
	{"onnxruntime", "ONNX Runtime", GPUMemory, "cuda failure 2: out of memory", "", onHost},
	{"nccl", "NCCL", GPUMemory, "cuda failure", "out of memory'", nil},
	{"triton", "Triton", GPUMemory, "triton error [cuda]: out of memory", "", nil},
	{"tensorrt", "TensorRT", GPUMemory, "cuda runtime (out of memory)", "", nil},
	{"rmm", "RAPIDS RMM", GPUMemory, "out_of_memory: cuda error", "", nil},
	{"cublas", "cuBLAS", GPUMemory, "cublas_status_alloc_failed", "", nil},
	{"cudnn", "cuDNN", GPUMemory, "cudnn_status_alloc_failed", "", nil},
	{"cudnn", "cuDNN 9", GPUMemory, "cudnn_status_internal_error_device_allocation_failed", "", nil},
	{"cusolver", "cuSOLVER", GPUMemory, "cusolver_status_alloc_failed", "", nil},
	{"cusparse", "cuSPARSE", GPUMemory, "cusparse_status_alloc_failed", "", nil},
	{"cufft", "cuFFT", GPUMemory, "cufft_alloc_failed", "", nil},
	{"curand", "cuRAND", GPUMemory, "curand_status_allocation_failed", "", nil},
	{"cuda", "CUDA driver", GPUMemory, "cuda_error_out_of_memory", "", onHost},
	{"cuda", "CUDA runtime", GPUMemory, "cudaerrormemoryallocation", "", onHost},
	{"cuda", "CUDA runtime, as frameworks print it", GPUMemory, "cuda error: out of memory", "", onHost},
	{"cuda", "PyTorch with expandable segments", GPUMemory, "cuda driver error: out of memory", "", nil},
	{"cuda", "CTranslate2", GPUMemory, "cuda failed with error out of memory", "", nil},
	{"cuda", "spconv", GPUMemory, "cuda failed with error 2 out of memory", "", nil},
	{"cuda", "llama.cpp, MXNet", GPUMemory, "cudamalloc failed: out of memory", "", nil},
	{"cuda", "MXNet 1.6 and later", GPUMemory, "cudamalloc retry failed: out of memory", "", nil},
	{"cuda", "MXNet", GPUMemory, "check failed: e == cudasuccess", "cuda: out of memory", onHost},
	{"cuda", "PaddlePaddle 2", GPUMemory, "cuda error(2), out of memory", "", onHost},
	{"cuda", "Caffe", GPUMemory, "cudasuccess (2 vs. 0)", "out of memory", nil},
	{"cuda", "AMReX", GPUMemory, "cuda error 2 in file", "out of memory", nil},
	{"cuda", "SPECFEM3D", GPUMemory, "cuda error !!!!! <out of memory>", "", nil},
	{"paddle", "PaddlePaddle", GPUMemory, "out of memory error on gpu ", "cannot allocate", nil},
	{"catboost", "CatBoost", GPUMemory, "ncudalib::toutofmemoryerror", "", nil},
	{"rmm", "RAPIDS RMM", GPUMemory, "out_of_memory: rmm failure", "", nil},
	{"tensorrt", "TensorRT 10", GPUMemory, "outofmemory (requested size was", "", nil},
	{"relion", "RELION", GPUMemory, "out of memory in cuda_mem_utils", "", nil},
	{"relion", "RELION", GPUMemory, "cudacustomallocator out of memory", "", nil},
	{"lammps", "LAMMPS", GPUMemory, "insufficient memory on accelerator", "", nil},
	{"bitsandbytes", "bitsandbytes", GPUMemory, "error out of memory at line", "in file", nil},
	{"relion", "RELION", GPUMemory, "you ran out of memory on the gpu", "", nil},
	{"faiss", "faiss", GPUMemory, "failed to cudamalloc", "bytes", nil},
	{"faiss", "faiss", GPUMemory, "standardgpuresources: alloc fail", "", nil},
	{"cuda.jl", "CUDA.jl", GPUMemory, "error: out of gpu memory", "", nil},
	{"cupy", "CuPy", GPUMemory, "outofmemoryerror: out of memory to allocate", "", nil},
	{"pycuda", "PyCUDA", GPUMemory, "cumemalloc failed: out of memory", "", nil},
	{"rmm", "RAPIDS RMM", GPUMemory, "rmm_error_out_of_memory", "", nil},
	{"cuda", "Thrust", GPUMemory, "parallel_for failed: out of memory", "", nil},
	{"paddle", "PaddlePaddle", GPUMemory, "paddlecheckerror: out of memory", "", nil},
	{"tensorrt", "TensorRT before 8", GPUMemory, "cuda error in allocate: 2 (out of memory)", "", nil},
	{"pytorch", "PyTorch, as vLLM prints it", GPUMemory, "cuda out of memory occurred when", "", nil},
	{"cuda", "dlib", GPUMemory, "error while calling cudamalloc", "code: 2, reason: out of memory", nil},
	{"cuda", "tiny-cuda-nn", GPUMemory, "cudamalloc(", "failed with error out of memory", nil},
	{"cuda", "TensorRT-LLM", GPUMemory, "cuda runtime error in ", "out of memory", onHost},
	{"cuda", "Kaldi", GPUMemory, "cuda error: 'out of memory'", "", nil},
	{"cuda", "programs with NVIDIA's gpuErrchk", GPUMemory, "gpuassert: out of memory", "", nil},
	{"cuda", "Blender", GPUMemory, "out of memory in cu", "(", onHost},
	{"blender", "Blender", GPUMemory, "system is out of gpu ", "memory", nil},
	{"cuda", "MXNet and TVM", GPUMemory, "cudaerrorcudartunloading", "cuda: out of memory", onHost},
	{"mxnet", "MXNet before 0.8", GPUMemory, "pooled_storage_manager", "memory allocation failed", nil},
	{"physx", "PhysX", GPUMemory, "pxgcudadevicememoryallocator fail to allocate memory", "result = 2", nil},
	{"theano", "Theano", GPUMemory, "bytes of device memory (out of memory)", "", nil},
	{"theano", "Theano", GPUMemory, "gpuarrayexception: b'out of memory'", "", nil},
	{"cupy", "Chainer", GPUMemory, "out of memory to allocate", "bytes (total", nil},
	{"tensorrt", "TensorRT 8 and 9", GPUMemory, "error code 2: outofmemory", "", nil},
	{"arrayfire", "ArrayFire", GPUMemory, "arrayfire exception (device out of memory", "", nil},
	{"cuda", "COLMAP", GPUMemory, "cuda error at ", "- out of memory", onHost},
	{"cuda", "GPU4PySCF", GPUMemory, "cuda error of ", ": out of memory", onHost},
	{"cuda", "hashcat", GPUMemory, "cumemalloc(): out of memory", "", nil},
	{"hashcat", "hashcat", GPUMemory, "not enough allocatable device memory", "", nil},
	{"opencl", "OpenCL", GPUMemory, "cl_mem_object_allocation_failure", "", nil},
	{"vulkan", "Vulkan", GPUMemory, "vk_error_out_of_device_memory", "", nil},
	{"opencv", "OpenCV", GPUMemory, "gpu api call", "out of memory", onHost},
	{"matlab", "MATLAB", GPUMemory, "out of memory on device. to view more detail", "", nil},
	{"kokkos", "Kokkos", GPUMemory, `memoryspace named "cuda" failed`, "insufficient memory", nil},
}

// onNode are words of messages about the node's memory, a cgroup's, Java's or a queue's.
var onNode = append([]string{"shared memory", "node running low", "memory on the node", "heap space", "cgroup", "swap",
	"oom-kill", "oom_kill", "oom killer", "raylet", "disk", "/dev/shm", "main memory", "system memory", "cpu memory",
	"defaultcpuallocator", "dataloader", "slurmstepd", "java.lang", "ulimit", "tensor on cpu", "usage:", "--on-oom",
	"are caught", "virtual memory", "nccl info", "llvm error"}, append(harmless, onHost...)...)

// weak are the words of programs that have no signature.
var weak = []message{
	{"out-of-memory", "any program", GPUMemory, "out of memory", "", onNode},
	{"out-of-memory", "any program", GPUMemory, "outofmemory", "", onNode},
	{"out-of-memory", "any program", GPUMemory, "out_of_memory", "", onNode},
	{"out-of-memory", "any program", GPUMemory, "insufficient memory", "", onNode},
	{"out-of-memory", "any program", GPUMemory, "not enough memory", "", onNode},
	{"out-of-memory", "any program", GPUMemory, "not enough gpu memory", "", onNode},
	{"out-of-memory", "any program", GPUMemory, "out of gpu memory", "", onNode},
	{"out-of-memory", "any program", GPUMemory, "out of device memory", "", onNode},
	{"out-of-memory", "any program", GPUMemory, "insufficient gpu memory", "", onNode},
	{"out-of-memory", "any program", GPUMemory, "insufficient device memory", "", onNode},
	{"out-of-memory", "any program", GPUMemory, "not enough device memory", "", onNode},
	{"out-of-memory", "any program", GPUMemory, "memory allocation fail", onGPU, onNode},
	{"out-of-memory", "any program", GPUMemory, "memory allocation error", onGPU, onNode},
	{"out-of-memory", "any program", GPUMemory, "failed to alloc", onGPU, onNode},
	{"out-of-memory", "any program", GPUMemory, "fail to alloc", onGPU, onNode},
	{"out-of-memory", "any program", GPUMemory, "could not alloc", onGPU, onNode},
	{"out-of-memory", "any program", GPUMemory, "cannot alloc", onGPU, onNode},
	{"out-of-memory", "any program", GPUMemory, "can't alloc", onGPU, onNode},
	{"out-of-memory", "any program", GPUMemory, "unable to alloc", onGPU, onNode},
	{"out-of-memory", "any program", GPUMemory, "error allocating", onGPU, onNode},
	{"out-of-memory", "any program", GPUMemory, "allocation failed", onGPU, onNode},
	{"out-of-memory", "any program", GPUMemory, "failed to cuda calloc", "", onNode},
	{"out-of-memory", "any program", GPUMemory, "failed to cuda malloc", "", onNode},
	{"out-of-memory", "any program", GPUMemory, "cudamalloc failed", "", onNode},
}

// onGPU stands for any of gpuWords, anywhere on the line.
const onGPU = "\x00gpu"

var gpuWords = []string{"cuda", "gpu", "device", "vram", "cublas", "cudnn", "nccl", "nvidia", "accelerator", "cumem"}

// disguises are what libraries say when a workspace, a handle or a buffer of theirs could not be had, and
// for other reasons as well: a driver that does not fit, a kernel that is missing, a failed assertion.
var disguises = []message{
	{"faiss", "faiss", GPUMemory, "cudasuccess' failed in", "faiss::gpu::", nil},
	{"faiss", "faiss", GPUMemory, "faiss assertion err == cudasuccess failed in", "", nil},
	{"relion", "RELION", GPUMemory, "the gpu had very little available memory", "", nil},
	{"lightgbm", "LightGBM", GPUMemory, "memory object allocation failure", "", nil},
	{"cudnn", "PyTorch", GPUMemory, "unable to find a valid cudnn algorithm", "", nil},
	{"cudnn", "PyTorch 2", GPUMemory, "was unable to find an engine to execute this computation", "", nil},
	{"cudnn", "TensorFlow", GPUMemory, "failed to get convolution algorithm", "", nil},
	{"cudnn", "TensorFlow, JAX", GPUMemory, "could not create cudnn handle", "", nil},
	{"cudnn", "TensorFlow, JAX", GPUMemory, "no algorithm worked!", "", nil},
	{"cudnn", "JAX", GPUMemory, "dnn library initialization failed", "", nil},
	{"cudnn", "JAX", GPUMemory, "dnn library is not found", "", nil},
	{"cudnn", "cuDNN", GPUMemory, "cudnn_status_not_initialized", "", nil},
	{"cudnn", "cuDNN", GPUMemory, "cudnn_status_internal_error", "", nil},
	{"cudnn", "cuDNN", GPUMemory, "cudnn_status_execution_failed", "", nil},
	{"cublas", "cuBLAS", GPUMemory, "cublas_status_not_initialized", "", nil},
	{"cublas", "cuBLAS", GPUMemory, "cublas_status_internal_error", "", nil},
	{"cublas", "cuBLAS", GPUMemory, "cublas_status_execution_failed", "", nil},
	{"cublas", "TensorFlow", GPUMemory, "failed to create cublas handle", "", nil},
	{"cublas", "TensorFlow", GPUMemory, "gemm launch failed", "", nil},
	{"cublas", "TensorFlow", GPUMemory, "streamexecutor without blas support", "", nil},
	{"cusolver", "JAX", GPUMemory, "cusolver internal error", "", nil},
	{"cusolver", "PyTorch 1.7 to 1.10", GPUMemory, "cusolver error: 7,", "", nil},
	{"cusolver", "TensorFlow", GPUMemory, "failed to create cusolverdn instance", "", nil},
	{"cusolver", "JAX", GPUMemory, "gpusolverdncreate", "", nil},
	{"cusolver", "cuSOLVER", GPUMemory, "cusolver_status_internal_error", "", nil},
	{"cusolver", "cuSOLVER", GPUMemory, "cusolver_status_not_initialized", "", nil},
	{"cufft", "cuFFT", GPUMemory, "cufft_internal_error", "", nil},
	{"nccl", "NCCL", GPUMemory, "unhandled cuda error", "", nil},
	{"jax", "XLA", GPUMemory, "failed to load in-memory cubin", "", nil},
	{"jax", "XLA", GPUMemory, "autotuning failed for hlo", "", nil},
}

// advising are what programs add to many an error.
var advising = []message{
	{"advice", "any program", GPUMemory, "reduce batch size", "", onNode},
	{"advice", "any program", GPUMemory, "reduce the batch size", "", onNode},
	{"advice", "any program", GPUMemory, "reducing batch size", "", onNode},
	{"advice", "any program", GPUMemory, "reducing the batch size", "", onNode},
	{"advice", "any program", GPUMemory, "smaller batch size", "", onNode},
	{"advice", "vLLM", GPUMemory, "try increasing `gpu_memory_utilization`", "", nil},
	{"advice", "vLLM", GPUMemory, "decreasing gpu_memory_utilization", "", nil},
	{"advice", "SGLang", GPUMemory, "try to reduce --mem-fraction-static", "", nil},
}

// others tell of other ends.
var others = []message{
	{"oom-kill", "slurmstepd", HostMemory, "oom-kill event", "", nil},
	{"oom-kill", "slurmstepd 21.08 and later", HostMemory, "oom_kill event", "", nil},
	{"host-memory", "PyTorch", HostMemory, "defaultcpuallocator: ", "", nil},
	{"host-memory", "NumPy", HostMemory, "_arraymemoryerror: ", "", nil},
	{"host-memory", "PyTorch's loader", HostMemory, "is killed by signal: killed", "", nil},
	{"host-memory", "TensorFlow", HostMemory, "oom when allocating tensor", "by allocator cpu", nil},
	{"mps", "CUDA runtime", MPS, "mps client has been terminated", "", nil},
	{"mps", "CUDA runtime", MPS, "cudaerrormps", "", nil},
	{"mps", "CUDA driver", MPS, "cuda_error_mps_", "", nil},
	{"mps", "CUDA runtime", MPS, "mps client failed to connect", "", nil},
	{"mps", "CUDA runtime", MPS, "between the mps server and the mps client failed", "", nil},
	{"mps", "CUDA runtime", MPS, "cuda-capable device(s) is/are busy or unavailable", "", nil},
	{"mps", "CUDA runtime", MPS, "cudaerrordevicesunavailable", "", nil},
	{"gpu-fault", "programs that print CUDA's number", GPUFault, "cuda error 700", "", nil},
	{"gpu-fault", "CUDA runtime", GPUFault, "an illegal memory access was encountered", "", nil},
	{"gpu-fault", "CUDA driver", GPUFault, "cuda_error_illegal_address", "", nil},
	{"gpu-fault", "CUDA runtime", GPUFault, "device-side assert triggered", "", nil},
	{"gpu-fault", "CUDA runtime", GPUFault, "unspecified launch failure", "", nil},
	{"gpu-fault", "CUDA runtime", GPUFault, "uncorrectable ecc error", "", nil},
	{"vllm-start", "vLLM", Profiling, "error in memory profiling", "", nil},
	{"sglang-start", "SGLang", Profiling, "memory capacity is unbalanced", "", nil},
}
