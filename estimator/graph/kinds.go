// SPDX-License-Identifier: Apache-2.0

package graph

import "strings"

// class says what a module does with memory. The names are PyTorch's, timm's,
// torchvision's and Hugging Face's class names; what an operation keeps for
// its backward is from PyTorch's tools/autograd/derivatives.yaml.
type class uint8

const (
	clsUnknown class = iota
	clsConv
	clsConvT
	clsLinear
	clsEmbedding
	clsBatchNorm
	clsLayerNorm   // input and two numbers a row
	clsRMSNorm     // composed of pow, mean, rsqrt, mul
	clsNormAct     // a norm that contains its activation
	clsActOut      // keeps its output; in place in practice (ReLU)
	clsActOutNew   // keeps its output, never in place (Sigmoid, Tanh, Softmax)
	clsActIn       // keeps its input
	clsActLeaky    // keeps its input, its output if in place
	clsActComposed // written in Python, keeps several
	clsMaxPool
	clsAvgPool
	clsGlobalPool
	clsIdentity
	clsDropout
	clsDropPath
	clsFlatten
	clsScale // LayerScale, Affine: x*gamma
	clsPad
	clsUpsample
	clsUnfold
	clsSide // tables of positions and the like: nothing on the main path
)

// leafClass gives the behaviour of a class by its exact name.
func leafClass(kind string) class {
	switch kind {
	case "Conv1d", "Conv2d", "Conv3d", "LazyConv2d", "Conv2dSame", "StdConv2d", "StdConv2dSame",
		"ScaledStdConv2d", "ScaledStdConv2dSame", "CondConv2d":
		return clsConv
	case "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d":
		return clsConvT
	case "Linear", "NonDynamicallyQuantizableLinear", "Conv1D", "NormLinear", "Linear4bit", "Linear8bitLt":
		return clsLinear
	case "Embedding", "EmbeddingBag":
		return clsEmbedding
	case "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "InstanceNorm1d", "InstanceNorm2d",
		"InstanceNorm3d":
		return clsBatchNorm
	case "FrozenBatchNorm2d", "Identity", "Sequential", "ModuleList", "ModuleDict":
		return clsIdentity
	case "LayerNorm", "LayerNorm2d", "GroupNorm", "GroupNorm1", "LayerNormFp32", "LayerNormExp2d":
		return clsLayerNorm
	case "ReLU", "Threshold":
		return clsActOut
	case "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Softmax2d", "RadixSoftmax":
		return clsActOutNew
	case "ReLU6", "SiLU", "Swish", "GELU", "Hardswish", "HardSwish", "Hardsigmoid", "HardSigmoid",
		"Hardtanh", "ELU", "CELU", "SELU", "Mish", "Softplus", "PReLU", "LogSigmoid", "RReLU", "GELUTanh",
		"GammaAct", "GELUActivation", "PytorchGELUTanh", "SiLUActivation", "MishActivation":
		return clsActIn
	case "LeakyReLU":
		return clsActLeaky
	case "Softsign", "NewGELUActivation", "FastGELUActivation", "QuickGELUActivation", "QuickGELU", "GEGLU",
		"AccurateGELUActivation":
		return clsActComposed
	case "MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxPool2dSame", "AdaptiveMaxPool2d":
		return clsMaxPool
	case "AvgPool1d", "AvgPool2d", "AvgPool3d", "AvgPool2dSame":
		return clsAvgPool
	case "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "FastAdaptiveAvgPool",
		"FastAdaptiveAvgPool2d":
		return clsGlobalPool
	case "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout",
		"StableDropout":
		return clsDropout
	case "DropPath", "StochasticDepth":
		return clsDropPath
	case "Flatten", "Unflatten", "Permute":
		return clsFlatten
	case "ChannelShuffle", "ZeroPad2d", "ReflectionPad2d", "ReplicationPad2d", "ConstantPad2d",
		"PixelShuffle", "PixelUnshuffle", "SpaceToDepth", "BlurPool2d":
		return clsPad
	case "LayerScale", "LayerScale2d", "Affine", "Scale", "GlobalResponseNorm":
		return clsScale
	case "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d":
		return clsUpsample
	case "Unfold", "Fold":
		return clsUnfold
	}
	return clsUnknown
}

// KnownLeaf says whether a class is one whose memory behaviour is known.
func KnownLeaf(kind string) bool { return classOf(kind) != clsUnknown || kind == "MultiheadAttention" }

// Pattern is what stands for a class name where evidence is counted: for a module
// whose memory behaviour is known, that behaviour; for any other the last word of
// its name, which is how containers are named (a LevitBlock is a *Block).
func Pattern(kind string) string {
	if c := classOf(kind); c != clsUnknown {
		return behaviours[c]
	}
	i := len(kind)
	for i > 0 && !isUpper(kind[i-1]) {
		i--
	}
	for acronym := i == len(kind); i > 0 && isUpper(kind[i-1]); i-- {
		if !acronym {
			i--
			break
		}
	}
	return "*" + kind[i:]
}

// behaviours names the classes in the list of what was measured.
var behaviours = [...]string{
	clsConv: "convolution", clsConvT: "transposed convolution", clsLinear: "linear", clsEmbedding: "embedding",
	clsBatchNorm: "batch norm", clsLayerNorm: "layer norm", clsRMSNorm: "rms norm", clsNormAct: "norm with activation",
	clsActOut: "activation that keeps its output in place", clsActOutNew: "activation that keeps its output",
	clsActIn: "activation that keeps its input", clsActLeaky: "leaky activation", clsActComposed: "composed activation",
	clsMaxPool: "max pool", clsAvgPool: "average pool", clsGlobalPool: "global pool", clsIdentity: "identity",
	clsDropout: "dropout", clsDropPath: "drop path", clsFlatten: "flatten", clsScale: "scale", clsPad: "pad",
	clsUpsample: "upsample", clsUnfold: "unfold", clsSide: "side value",
}

func isUpper(c byte) bool { return c >= 'A' && c <= 'Z' }

// ConvNormAct says whether a class is a convolution, a norm or an activation.
func ConvNormAct(kind string) bool {
	switch c := classOf(kind); c {
	case clsConv, clsConvT, clsBatchNorm, clsLayerNorm, clsRMSNorm, clsNormAct:
		return true
	default:
		return isAct(c) && kind != "Softmax"
	}
}

// Convolution says whether a class is a convolution.
func Convolution(kind string) bool { return classOf(kind) == clsConv }

// classOf gives a class name's behaviour; clsUnknown means: a container, or a
// module that nobody here knows.
func classOf(kind string) class {
	if c := leafClass(kind); c != clsUnknown {
		return c
	}
	switch {
	case (strings.HasSuffix(kind, "NormAct") || strings.HasSuffix(kind, "NormAct2d")) &&
		!strings.HasPrefix(kind, "Conv") ||
		strings.HasPrefix(kind, "EvoNorm") || strings.HasPrefix(kind, "FilterResponseNorm") ||
		strings.HasPrefix(kind, "InplaceAbn"):
		return clsNormAct
	case strings.HasSuffix(kind, "RelPosBias") || strings.HasSuffix(kind, "RelPosBiasTf") ||
		strings.HasSuffix(kind, "RelPosMlp") ||
		strings.Contains(kind, "Rotary"):
		return clsSide
	case strings.HasSuffix(kind, "RMSNorm") || strings.HasSuffix(kind, "RmsNorm") ||
		strings.HasSuffix(kind, "RmsNorm2d") || kind == "T5LayerNorm":
		return clsRMSNorm
	case strings.Contains(kind, "LayerNorm"):
		return clsLayerNorm
	case strings.Contains(kind, "Affine"):
		return clsScale
	}
	return clsUnknown
}
