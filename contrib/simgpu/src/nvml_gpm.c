/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: GPU performance monitoring (Hopper and later): counters, and metrics between two samples of them. */
#include <math.h>
#include <stdlib.h>

#include "nvml_view.h"

struct nvmlGpmSample_st {
	bool filled, nan, zero; /* nan, zero: the faults of those names */
	double time, smact, resident; /* seconds; integrals in seconds */
};

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
	OPEN(v, device, support != NULL);

	if (support->version != 1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	support->isSupportedDevice = v.model->gpm;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
	if (sample == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*sample = calloc(1, sizeof(**sample));
	return *sample != NULL ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
	if (sample == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	free(sample);
	return NVML_SUCCESS;
}

/* instance 0: the whole GPU; else the MIG instance of that number, by its own SMs. */
static nvmlReturn_t take(nvmlDevice_t device, unsigned int instance, nvmlGpmSample_t sample)
{
	OPEN(v, device, sample != NULL);

	if (!v.model->gpm || v.mig != NULL)
		return NVML_ERROR_NOT_SUPPORTED;
	if (v.gpu->fault == SIM_SILENT_GPM || v.gpu->fault == SIM_NO_ACTIVITY) /* supported, and yet it does not answer */
		return NVML_ERROR_NO_PERMISSION;
	if (instance != 0 && (!view_mig_enabled(&v) || instance > v.gpu->units))
		return NVML_ERROR_INVALID_ARGUMENT;
	*sample = (struct nvmlGpmSample_st){ .filled = true, .time = v.s->now };
	sample->nan = v.gpu->fault == SIM_NAN_GPM;
	sample->zero = v.gpu->fault == SIM_ZERO_SMACT;
	for (uint32_t u = v.gpu->first_unit; u < v.gpu->first_unit + v.gpu->units; u++) {
		const struct sim_unit *unit = &v.s->unit[u];
		double weight = instance == 0 ? unit->share : unit->mig == instance;

		sample->smact += weight * unit->smact;
		sample->resident += weight * unit->resident;
	}
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
	return take(device, 0, sample);
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int instance, nvmlGpmSample_t sample)
{
	return instance == 0 ? NVML_ERROR_INVALID_ARGUMENT : take(device, instance, sample);
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
	if (get == NULL || get->sample1 == NULL || get->sample2 == NULL || get->numMetrics > NVML_GPM_METRIC_MAX)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (get->version != 1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	const struct nvmlGpmSample_st *a = get->sample1, *b = get->sample2;
	double seconds = b->time - a->time;

	if (!a->filled || !b->filled || seconds <= 0.0)
		return NVML_ERROR_INVALID_ARGUMENT;
	double smact = 100.0 * (b->smact - a->smact) / seconds;
	double resident = 100.0 * (b->resident - a->resident) / seconds;

	if (b->nan || b->zero)
		smact = resident = b->nan ? NAN : 0.0;
	const struct {
		unsigned int id;
		double value;
		const char *short_name, *long_name;
	} known[] = {
		{ 1, resident, "GRAPHICS_UTIL", "Graphics Engine Utilization" },
		{ 2, smact, "SM_UTIL", "SM Utilization" },
		{ 3, LAW_OCCUPANCY_PER_SMACT * smact, "SM_OCCUPANCY", "SM Occupancy" },
		{ 10, LAW_DRAM_PER_SMACT * smact, "DRAM_BW_UTIL", "DRAM Bandwidth Utilization" },
	};

	for (unsigned int i = 0; i < get->numMetrics; i++) {
		nvmlGpmMetric_t *m = &get->metrics[i];

		m->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
		m->value = NAN;
		m->metricInfo.shortName = m->metricInfo.longName = m->metricInfo.unit = NULL;
		for (unsigned int k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
			if (known[k].id != m->metricId)
				continue;
			m->nvmlReturn = NVML_SUCCESS;
			m->value = known[k].value;
			m->metricInfo.shortName = known[k].short_name;
			m->metricInfo.longName = known[k].long_name;
			m->metricInfo.unit = "%";
		}
	}
	return NVML_SUCCESS;
}
