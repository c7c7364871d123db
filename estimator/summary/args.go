// SPDX-License-Identifier: Apache-2.0

package summary

import (
	"bytes"
	"strings"
)

// readArgs reads the arguments that a module prints of itself
// (torch.nn.Module.extra_repr).
func readArgs(r *Row, b []byte) {
	a := &r.Attr
	a.Known = true
	a.Stride = [2]int32{1, 1}
	a.Dilation = [2]int32{1, 1}
	a.Groups, a.Bias = 1, true
	strideSet := false
	pos := 0
	for len(b) > 0 {
		arg, rest := nextArg(b)
		b = rest
		key, val := splitKey(arg)
		if len(key) == 0 {
			positional(r, pos, val)
			pos++
			continue
		}
		n := ints(val)
		switch string(key) {
		case "in_features", "in_channels", "num_embeddings":
			a.In = n[0]
		case "out_features", "out_channels", "embedding_dim":
			a.Out = n[0]
		case "kernel_size":
			a.Kernel = n
		case "stride":
			a.Stride, strideSet = n, true
		case "padding":
			a.Pad = n
			a.PadSame = bytes.Contains(val, []byte("same"))
		case "dilation":
			a.Dilation = n
		case "groups":
			a.Groups = max(n[0], 1)
		case "output_size":
			a.OutSize = n
		case "bias", "elementwise_affine", "affine":
			a.Bias = !bytes.Contains(val, []byte("False"))
		case "inplace":
			a.Inplace = bytes.Contains(val, []byte("True"))
		case "ceil_mode":
			a.CeilMode = bytes.Contains(val, []byte("True"))
		case "p", "drop_prob":
			a.DropP = decimal(val)
		case "scale_factor":
			a.Scale = decimal(val)
		}
	}
	if strings.Contains(r.Kind, "Pool") && !strideSet && a.Kernel[0] > 0 {
		a.Stride = a.Kernel
	}
}

// positional arguments by class.
func positional(r *Row, pos int, val []byte) {
	a := &r.Attr
	n := ints(val)
	switch {
	case strings.Contains(r.Kind, "LayerNorm") || strings.HasSuffix(r.Kind, "RMSNorm"):
		if pos == 0 {
			a.Out = n[0]
		}
	case strings.HasPrefix(r.Kind, "GroupNorm"):
		if pos == 0 {
			a.Groups = max(n[0], 1)
		} else if pos == 1 {
			a.Out = n[0]
		}
	case strings.Contains(r.Kind, "BatchNorm") || strings.Contains(r.Kind, "InstanceNorm"):
		if pos == 0 {
			a.Out = n[0]
		}
	case strings.HasPrefix(r.Kind, "Dropout") || r.Kind == "DropPath":
		if pos == 0 {
			a.DropP = decimal(val)
		}
	case pos == 0:
		a.In = n[0]
	case pos == 1:
		a.Out = n[0]
	}
}

// nextArg cuts at the next comma outside of brackets.
func nextArg(b []byte) (arg, rest []byte) {
	depth := 0
	for i, c := range b {
		switch c {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case ',':
			if depth == 0 {
				return b[:i], b[i+1:]
			}
		}
	}
	return b, nil
}

func splitKey(arg []byte) (key, val []byte) {
	arg = bytes.TrimSpace(arg)
	i := bytes.IndexByte(arg, '=')
	if i <= 0 {
		return nil, arg
	}
	for _, c := range arg[:i] {
		if !isIdent(c) {
			return nil, arg
		}
	}
	return arg[:i], arg[i+1:]
}

// ints reads "3" or "(3, 5)"; a single number stands for both.
func ints(b []byte) [2]int32 {
	var v [2]int32
	n := 0
	for i := 0; i < len(b) && n < 2; {
		if !isDigit(b[i]) {
			i++
			continue
		}
		x, used, ok := parseCount(b[i:])
		if !ok || x > math31 {
			x = math31
		}
		// A tuple's comma is followed by a blank; parseCount stops there.
		v[n] = int32(x)
		n++
		i += max(used, 1)
	}
	if n == 1 {
		v[1] = v[0]
	}
	return v
}

// decimal reads a non-negative number such as 0.1; -1 if there is none.
func decimal(b []byte) float32 {
	v, scale := float64(0), float64(0)
	seen := false
	for _, c := range b {
		switch {
		case isDigit(c):
			seen = true
			if scale == 0 {
				if v < 1e9 {
					v = v*10 + float64(c-'0')
				}
			} else if scale < 1e9 {
				v += float64(c-'0') / scale
				scale *= 10
			}
		case c == '.' && scale == 0:
			scale = 10
		default:
			if seen {
				if !isDigit(c) && c != '.' {
					return float32(v)
				}
			} else if c != ' ' && c != '(' {
				return -1
			}
		}
	}
	if !seen {
		return -1
	}
	return float32(v)
}
