// SPDX-License-Identifier: Apache-2.0

package graph

import "strings"

// role says how a container combines what its children make. Class names are
// all that a summary has; the patterns are the naming habits of torchvision,
// timm and transformers.
type role uint16

const (
	roleResidual  role = 1 << iota // adds its input to its result
	roleAttention                  // attention among its children's projections
	roleGate                       // multiplies its input by a small gate
	roleBranches                   // its children run side by side on its input and are summed
	rolePostAct                    // adds in place, before the last activation
	roleMlp
	roleSelfOut // Hugging Face's *Output: LayerNorm(dense + input of the layer)
)

func has(s string, subs ...string) bool {
	for _, x := range subs {
		if strings.Contains(s, x) {
			return true
		}
	}
	return false
}

func roleOf(kind string) role {
	switch {
	case kind == "Sequential" || kind == "ModuleList":
		return 0
	case has(kind, "SqueezeExcit", "SEModule", "SELayer", "SEBlock", "EcaModule", "Gather", "CbamModule", "ChannelAttn",
		"EffectiveSE", "SqueezeEx"):
		return roleGate
	case has(kind, "MobileOneBlock", "RepVggBlock", "RepVGGBlock", "RepVggDw", "RepVGGDW", "RepConv"):
		return roleBranches
	case kind == "XLNetFeedForward" || has(kind, "SelfOutput") || strings.HasSuffix(kind, "Output") && !has(kind, "Pool"):
		return roleSelfOut
	case has(kind, "Attn", "Attention", "MHSA", "MultiHead") && !has(kind, "Block", "Split"):
		return roleAttention
	case has(kind, "Mlp", "MLP", "FeedForward", "FFN"):
		return roleMlp
	case has(kind, "ConvBlock", "FeatureBlock", "DenseBlock", "OsaBlock", "StemBlock", "VGGBlock", "ClassBlock") &&
		!has(kind, "NextConvBlock", "MbConvBlock"):
		return 0
	case has(kind, "PreAct", "NormFree", "Inverted"):
		return roleResidual
	case has(kind, "Bottleneck", "BasicBlock", "Bottle2neck", "ResBlock"):
		return roleResidual | rolePostAct
	case has(kind, "Block", "Residual", "EncoderLayer", "DecoderLayer", "Layer", "MBConv", "DSConv", "MbConv",
		"EdgeResidual"):
		return roleResidual
	}
	return 0
}
