// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"strings"

	"carma/estimator/summary"
)

// node is a module: the range of its rows, its own row last.
type node struct{ from, to int32 }

// reorder brings a module representation, which lists modules as they were
// defined, into the order in which they run.
func reorder(rows []summary.Row) []summary.Row {
	out := make([]summary.Row, 0, len(rows)+16)
	type visit struct {
		n     node
		start int32 // where the container's rows begin in out; -1: not opened
	}
	stack := make([]visit, 0, 64)
	push := func(kids []node) {
		for i := len(kids) - 1; i >= 0; i-- {
			stack = append(stack, visit{kids[i], -1})
		}
	}
	push(siblings(rows, 0, int32(len(rows))-1, nil))
	var kids []node
	for len(stack) > 0 && len(out) < summary.MaxRows {
		v := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		r := rows[v.n.to]
		switch {
		case v.n.from == v.n.to:
			r.Start = int32(len(out))
			out = append(out, r)
		case v.start >= 0:
			r.Start = v.start
			out = append(out, r)
		default:
			stack = append(stack, visit{v.n, int32(len(out))})
			kids = siblings(rows, v.n.from, v.n.to-1, kids[:0])
			push(execution(rows, v.n.to, kids))
		}
	}
	return out
}

// siblings lists the modules whose rows fill from..to, in order.
func siblings(rows []summary.Row, from, to int32, kids []node) []node {
	for i := to; i >= from && i >= 0; {
		kids = append(kids, node{rows[i].Start, i})
		i = rows[i].Start - 1
	}
	for i, j := 0, len(kids)-1; i < j; i, j = i+1, j-1 {
		kids[i], kids[j] = kids[j], kids[i]
	}
	return kids
}

// execution orders the children of container c.
func execution(rows []summary.Row, c int32, kids []node) []node {
	if len(kids) < 2 || len(kids) > 64 {
		return kids
	}
	kind := rows[c].Kind
	switch {
	case role(rows[c].Role)&rolePostAct != 0:
		return residualOrder(rows, kids)
	case isLayer(rows, kids):
		kids = layerOrder(rows, kids)
	case strings.HasPrefix(kind, "T5Layer"):
		return normFirst(rows, kids)
	}
	kids = actBetween(rows, kids)
	return normLast(rows, c, kids)
}

func isNorm(r *summary.Row) bool {
	c := class(r.Class)
	return c == clsLayerNorm || c == clsRMSNorm || c == clsBatchNorm
}

// isLayer: an attention module and at least one norm as direct children.
func isLayer(rows []summary.Row, kids []node) bool {
	attn, norm := false, false
	for _, k := range kids {
		attn = attn || role(rows[k.to].Role)&roleAttention != 0
		norm = norm || isNorm(&rows[k.to])
	}
	return attn && norm
}

// layerOrder: norm, attention, norm, the rest. A post-norm layer keeps as much
// as a pre-norm one, so that both may be read as pre-norm.
func layerOrder(rows []summary.Row, kids []node) []node {
	if isNorm(&rows[kids[0].to]) {
		return kids // as GPT2Block: ln_1, attn, ln_2, mlp
	}
	var norms, attn, rest []node
	for _, k := range kids {
		switch {
		case isNorm(&rows[k.to]):
			norms = append(norms, k)
		case role(rows[k.to].Role)&roleAttention != 0 && len(attn) == 0:
			attn = append(attn, k)
		default:
			rest = append(rest, k)
		}
	}
	out := make([]node, 0, len(kids))
	out = append(out, norms[:1]...)
	out = append(out, attn...)
	out = append(out, norms[1:]...)
	return append(out, rest...)
}

func normFirst(rows []summary.Row, kids []node) []node {
	var norms, rest []node
	for _, k := range kids {
		if isNorm(&rows[k.to]) {
			norms = append(norms, k)
		} else {
			rest = append(rest, k)
		}
	}
	return append(norms, rest...)
}

// actBetween moves an activation that is defined behind two or three linear
// layers to where it runs: after the first, or after the gate.
func actBetween(rows []summary.Row, kids []node) []node {
	act, first, linears := -1, -1, 0
	for i, k := range kids {
		switch c := class(rows[k.to].Class); {
		case c == clsLinear:
			if first < 0 {
				first = i
			}
			linears++
		case isAct(c):
			act = i
		}
	}
	if act < 0 || linears < 2 || linears > 3 || act < first+2 {
		return kids
	}
	a := kids[act]
	copy(kids[first+2:act+1], kids[first+1:act])
	kids[first+1] = a
	return kids
}

// normLast: dense, LayerNorm, dropout runs as dense, dropout, LayerNorm in
// Hugging Face's output modules, and XLNet's feed-forward ends with its norm.
func normLast(rows []summary.Row, c int32, kids []node) []node {
	if role(rows[c].Role)&roleSelfOut == 0 && rows[c].Kind != "XLNetFeedForward" {
		return kids
	}
	for i, k := range kids {
		if isNorm(&rows[k.to]) {
			copy(kids[i:], kids[i+1:])
			kids[len(kids)-1] = k
			break
		}
	}
	return kids
}

// residualOrder: a ResNet block defines its activation once and runs it after
// each norm; the shortcut's modules run before the last one.
func residualOrder(rows []summary.Row, kids []node) []node {
	var act node
	acts, norms := 0, 0
	for _, k := range kids {
		switch c := class(rows[k.to].Class); {
		case isAct(c):
			act = k
			acts++
		case c == clsBatchNorm || c == clsLayerNorm:
			norms++
		}
	}
	if acts != 1 || norms < 2 {
		return kids
	}
	out := make([]node, 0, len(kids)+norms)
	var shortcut []node
	seen := 0
	for _, k := range kids {
		c := class(rows[k.to].Class)
		switch {
		case isAct(c):
		case k.from != k.to && has(rows[k.to].Name, "downsample", "shortcut"):
			shortcut = append(shortcut, k)
		default:
			out = append(out, k)
			if c == clsBatchNorm || c == clsLayerNorm {
				if seen++; seen < norms {
					out = append(out, act)
				}
			}
		}
	}
	return append(append(out, shortcut...), act)
}
