# SPDX-License-Identifier: Apache-2.0
"""Tests of carma_summary.py; those of a model need PyTorch and say so."""

import io
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import carma_summary  # noqa: E402

torch = carma_summary.torch


class WithoutTorch(unittest.TestCase):
    def test_says_that_pytorch_is_missing(self):
        code = ("import sys; sys.modules['torch'] = None; import carma_summary; "
                "carma_summary.main(['m:f', '--seq', '4'])")
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                             cwd=os.path.dirname(os.path.abspath(__file__)))
        self.assertEqual(run.returncode, 1)
        self.assertIn("PyTorch is not installed", run.stderr)


@unittest.skipIf(torch is None, "PyTorch is not installed")
class WithTorch(unittest.TestCase):
    def text(self, model, **kw):
        out = io.StringIO()
        carma_summary.show(model, out=out, **kw)
        return out.getvalue()

    def test_linear_keeps_its_input_once(self):
        nn = torch.nn
        model = nn.Sequential(nn.Linear(1000, 500), nn.ReLU(), nn.Linear(500, 10))
        _rows, per, fixed = carma_summary.measure(model, shape=(1000,))
        # Two inputs of a Linear; the ReLU's output is the second one's input.
        self.assertEqual(per, 4 * (1000 + 500))
        self.assertEqual(fixed, 0)

    def test_rows_are_in_order_with_own_parameters(self):
        nn = torch.nn
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 6 * 6, 2))
        text = self.text(model, shape=(3, 8, 8), batch=64, optim="adam")
        self.assertTrue(text.startswith("#CARMA batch=64 input=3x8x8 optim=adam\n"))
        rows = [line.split() for line in text.splitlines() if line.startswith("#CARMA|") and "-" in line and "[" in line]
        self.assertEqual([r[1] for r in rows], ["Conv2d-1", "BatchNorm2d-2", "Flatten-3", "Linear-4"])
        self.assertEqual(rows[0][-1], "224")
        self.assertIn("[-1, 8, 6, 6]", text)
        self.assertIn("Total params: 818", text)

    def test_frozen_parameters_are_said(self):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
        for p in model[0].parameters():
            p.requires_grad = False
        self.assertIn("params=10", self.text(model, shape=(4,), batch=2).splitlines()[0])

    def test_tokens(self):
        model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50))
        text = self.text(model, seq=16, vocab=50, batch=4)
        self.assertIn("seq=16", text)
        self.assertIn("[-1, 16, 50]", text)

    def test_a_size_is_needed(self):
        with self.assertRaises(SystemExit):
            self.text(torch.nn.Linear(1, 1))


if __name__ == "__main__":
    unittest.main()
