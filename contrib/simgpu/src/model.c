/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "model.h"

/* Memory and SMs as `nvidia-smi mig -lgip` prints them (NVIDIA MIG user guide, "Supported profiles"). */
static const struct mig_profile mig_a100[] = {
	{ "1g.5gb", 4864, 14 },    { "2g.10gb", 9984, 28 },  { "3g.20gb", 20096, 42 },
	{ "4g.20gb", 20096, 56 },  { "7g.40gb", 40448, 98 }, { NULL, 0, 0 },
};
static const struct mig_profile mig_h100[] = {
	{ "1g.10gb", 9984, 16 },   { "2g.20gb", 20096, 32 },  { "3g.40gb", 40320, 60 },
	{ "4g.40gb", 40320, 64 },  { "7g.80gb", 81000, 132 }, { NULL, 0, 0 },
};
static const struct mig_profile mig_h200[] = {
	{ "1g.18gb", 16384, 16 },  { "2g.35gb", 33280, 32 },   { "3g.71gb", 71168, 60 },
	{ "4g.71gb", 71168, 64 },  { "7g.141gb", 143000, 132 }, { NULL, 0, 0 },
};

/*
 * dgx-a100: the machine of the CARMA paper (4 x 40 536 MiB, 33 MiB in use when idle; no GPM on Ampere).
 * Reserved memory of the Hopper boards is what `nvidia-smi -q` shows as FB Memory Usage: Reserved.
 */
static const struct model models[] = {
	{ "dgx-a100", "NVIDIA A100-SXM4-40GB", 4, 40536, 33, 108, 7, 8, 0, 0x20B010DE, 12, 400, false, mig_a100 },
	{ "h100", "NVIDIA H100 80GB HBM3", 8, 81559, 551, 132, 9, 9, 0, 0x233010DE, 18, 700, true, mig_h100 },
	{ "h200", "NVIDIA H200", 8, 143771, 611, 132, 9, 9, 0, 0x233510DE, 18, 700, true, mig_h200 },
};
#define MODELS (sizeof(models) / sizeof(models[0]))

const struct model *model_find(const char *key)
{
	for (uint32_t i = 0; i < MODELS; i++)
		if (strcmp(models[i].key, key) == 0)
			return &models[i];
	return NULL;
}

const struct model *model_get(uint32_t number)
{
	return number < MODELS ? &models[number] : NULL;
}

uint32_t model_number(const struct model *m)
{
	return (uint32_t)(m - models);
}

const struct mig_profile *model_mig(const struct model *m, const char *name)
{
	for (const struct mig_profile *p = m->mig; p->name != NULL; p++)
		if (strcmp(p->name, name) == 0)
			return p;
	return NULL;
}

uint32_t model_pci_bus(uint32_t n)
{
	/* The eight of a DGX A100, then eight more. */
	static const uint8_t bus[16] = { 0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD,
					 0xC1, 0xC5, 0xC9, 0xCD, 0xD1, 0xD5, 0xD9, 0xDD };
	return bus[n % 16];
}

uint32_t model_numa_node(uint32_t n, uint32_t gpus)
{
	return n >= (gpus + 1) / 2;
}

/*
 * Power against SM activity, read off the power and SMACT curves that the CARMA authors published for
 * four A100-SXM4-40GB (400 W boards): concave, piecewise linear between these points. The 700 W boards
 * get the same shape times 700/400, for want of a measured curve.
 */
double model_power(const struct model *m, double smact)
{
	static const struct {
		double smact, watt;
	} curve[] = { { 0.0, 58 }, { 0.35, 163 }, { 0.5, 204 }, { 0.65, 232 }, { 0.8, 256 }, { 1.0, 273 } };
	const unsigned last = sizeof(curve) / sizeof(curve[0]) - 1;
	const double scale = m->power_limit_w / 400.0;

	if (smact <= 0.0)
		return curve[0].watt * scale;
	for (unsigned i = 0; i < last; i++) {
		if (smact > curve[i + 1].smact)
			continue;
		double part = (smact - curve[i].smact) / (curve[i + 1].smact - curve[i].smact);
		return (curve[i].watt + part * (curve[i + 1].watt - curve[i].watt)) * scale;
	}
	return curve[last].watt * scale;
}
