// SPDX-License-Identifier: Apache-2.0

package graph

import (
	"strings"

	"carma/estimator/summary"
)

// spans finds, for rows without depth (torchsummary), where each container
// begins. The rows are in post-order, so a container's row follows those of
// its children; what is unknown is how many of the preceding subtrees are its
// children.
//
// Where two containers of one class are siblings, all subtrees between them
// belong to the second one (or to the closing of a stage around the first):
// that gives the class's usual list of children, by which the first one and
// those behind other siblings are then cut. The work is bounded: per
// container at most maxChildren subtrees are looked at.
func spans(rows []summary.Row, kinds []int32, nKinds int) {
	sp := spanner{
		rows: rows, kinds: kinds,
		leaf:   make([]bool, nKinds),
		usual:  make([][]int32, nKinds),
		inside: make([]int32, nKinds),
	}
	for i := range sp.inside {
		sp.inside[i] = -1
	}
	sp.markLeaves()
	sp.pass()
	sp.pass()
}

const maxChildren = 256

type spanner struct {
	rows     []summary.Row
	kinds    []int32
	leaf     []bool    // by kind
	usual    [][]int32 // by kind: the children's kinds, shortest list seen between siblings
	inside   []int32   // by kind: the kind that contained it last
	gateSize int64     // elements that the gate being cut multiplies
	stack    []int32   // rows that are roots of finished subtrees
}

// markLeaves sets leaf for the classes that have no children: those known to,
// and those that once follow themselves directly.
func (s *spanner) markLeaves() {
	for i := range s.rows {
		k := s.kinds[i]
		switch c := rowClass(&s.rows[i]); {
		case c == clsNormAct:
		case c != clsUnknown:
			s.leaf[k] = true
		case i == 0 || s.kinds[i-1] == k:
			s.leaf[k] = true
		}
	}
}

func (s *spanner) pass() {
	s.stack = s.stack[:0]
	for i := range s.rows {
		k := s.kinds[i]
		n := 0
		switch {
		case s.leaf[k]:
		case rowClass(&s.rows[i]) == clsNormAct:
			n = s.normActChildren()
		default:
			n = s.children(i, k)
		}
		top := len(s.stack) - n
		start := int32(i)
		if n > 0 {
			start = s.rows[s.stack[top]].Start
			for _, c := range s.stack[top:] {
				s.inside[s.kinds[c]] = k
			}
		}
		s.rows[i].Start = start
		s.stack = append(s.stack[:top], int32(i))
	}
}

// normActChildren: a BatchNormAct2d contains a dropout or Identity and an
// activation.
func (s *spanner) normActChildren() int {
	n := 0
	for n < 2 && n < len(s.stack) {
		r := s.stack[len(s.stack)-1-n]
		c := rowClass(&s.rows[r])
		if c == clsIdentity || c == clsDropout || (n == 0 && isAct(c)) {
			n++
			continue
		}
		break
	}
	return n
}

func isAct(c class) bool {
	switch c {
	case clsActOut, clsActOutNew, clsActIn, clsActLeaky, clsActComposed:
		return true
	}
	return false
}

// children counts the subtrees on top of the stack that belong to a container
// of kind k which ends now.
func (s *spanner) children(i int, k int32) int {
	limit := min(len(s.stack), maxChildren)
	n, sibling := 0, false
	for n < limit {
		kk := s.kinds[s.stack[len(s.stack)-1-n]]
		if kk == k {
			sibling = true
			break
		}
		if n > 0 && s.inside[k] == kk && s.usual[k] == nil {
			break
		}
		n++
	}
	own := role(s.rows[i].Role)
	if own&roleBranches != 0 {
		return s.single(i, k, n, own)
	}
	if u := s.usual[k]; own != roleGate && u != nil && s.matches(u, n) {
		return len(u)
	}
	if own == roleGate {
		s.gateSize = max(s.rows[i].Out.Elems(), 2)
		return s.single(i, k, n, own)
	}
	if sibling {
		if n > 0 && n < 64 && (s.usual[k] == nil || n < len(s.usual[k])) {
			s.usual[k] = s.top(n)
		}
		return n
	}
	return s.single(i, k, n, own)
}

// single cuts a container that has no sibling before it. A block ends at the
// last block before it, unless it wraps blocks; an attention or a gate ends at
// the last block or attention; anything else takes what there is, up to a
// container that has held its class before.
func (s *spanner) single(i int, k int32, limit int, own role) int {
	stop := role(0)
	switch {
	case own&(roleResidual|roleBranches) != 0:
		if len(s.stack) > 0 && s.rootRole(len(s.stack)-1)&roleResidual == 0 {
			stop = roleResidual
		}
	case own&roleAttention != 0:
		stop = roleResidual | roleAttention
	case own != 0:
		stop = roleResidual | roleAttention | roleMlp | roleGate
	}
	n, linears := 0, 0
	for n < limit {
		at := len(s.stack) - 1 - n
		kk := s.kinds[s.stack[at]]
		if n > 0 && s.inside[k] == kk || s.rootRole(at)&stop != 0 {
			break
		}
		if own&roleBranches != 0 && !s.inBranch(at, &s.rows[i].Out) {
			break
		}
		if own == roleGate && s.rows[s.stack[at]].Out.Elems() >= s.gateSize {
			break // the gate works on the squeezed map
		}
		if own == roleMlp && rowClass(&s.rows[s.stack[at]]) == clsLinear {
			// A perceptron has two layers; a gated one may have three.
			if linears++; linears > 2 {
				break
			}
		}
		n++
	}
	if own == roleAttention {
		n -= s.normBefore(n)
	}
	return n
}

// inBranch says whether the root at may be part of a block of summed branches:
// it has the block's shape and is a module without children, a convolution or
// norm that contains its activation, or the block's gate.
func (s *spanner) inBranch(at int, out *Shape) bool {
	i := s.stack[at]
	r := &s.rows[i]
	return r.Out == *out && (r.Start == i || rowClass(r) == clsNormAct || s.rootRole(at) == roleGate ||
		strings.HasPrefix(r.Kind, "Conv"))
}

// normBefore counts the subtrees up to and with a norm that stands before the
// first projection: it feeds the attention and is no part of it.
func (s *spanner) normBefore(n int) int {
	for k := 0; k < n; k++ {
		switch rowClass(&s.rows[s.stack[len(s.stack)-n+k]]) {
		case clsLinear:
			return 0
		case clsLayerNorm, clsBatchNorm, clsRMSNorm:
			return k + 1
		}
	}
	return 0
}

func (s *spanner) rootRole(at int) role {
	r := s.stack[at]
	if s.leaf[s.kinds[r]] {
		return 0
	}
	return role(s.rows[r].Role)
}

func (s *spanner) top(n int) []int32 {
	u := make([]int32, n)
	for i := range u {
		u[i] = s.kinds[s.stack[len(s.stack)-n+i]]
	}
	return u
}

func (s *spanner) matches(u []int32, limit int) bool {
	if len(u) > limit {
		return false
	}
	for i, k := range u {
		if s.kinds[s.stack[len(s.stack)-len(u)+i]] != k {
			return false
		}
	}
	return true
}
