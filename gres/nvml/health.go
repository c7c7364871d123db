// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// health is the driver's report on a device beside its load.
type health struct {
	events      nvml.EventSet // nil: it reports none
	hasRows     bool          // Ampere and later
	hasRecovery bool
	at          time.Time // of the last look
	fault       string
	rowsPending bool
}

// healthEvery is how often the state of a device is asked for. Errors are reported by events.
const healthEvery = 10 * time.Second

// openHealth asks for events and finds out which other facts the driver can tell.
func (d *device) openHealth() {
	has := func(symbol string) bool { return d.lib.Extensions().LookupSymbol(symbol) == nil }
	d.health.hasRows = has("nvmlDeviceGetRemappedRows")
	d.health.hasRecovery = has("nvmlDeviceGetFieldValues")
	if !has("nvmlEventSetCreate") || !has("nvmlDeviceRegisterEvents") || !has("nvmlEventSetWait") {
		return
	}
	set, ret := d.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return
	}
	if ret := d.RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
		set.Free() // a virtual machine, or no permission
		return
	}
	d.health.events = set
}

// maxXids bounds the errors read at one look; the rest comes at the next.
const maxXids = 16

// xids are the errors that the driver has reported since the last look. The driver keeps
// the errors until they are asked for (nvml.h, nvmlEventSetWait).
func (d *device) xids() (list []uint64) {
	for d.health.events != nil && len(list) < maxXids {
		e, ret := d.health.events.Wait(0)
		if ret != nvml.SUCCESS {
			break // none, or the GPU is lost, which its sample says
		}
		if e.EventType == nvml.EventTypeXidCriticalError {
			list = append(list, e.EventData)
		}
	}
	return list
}

// readHealth asks for the state of the device. A value that the device does not answer stays
// as it was.
func (d *device) readHealth() {
	h := &d.health
	if time.Since(h.at) < healthEvery {
		return
	}
	h.at = time.Now()
	fault := ""
	if h.hasRows {
		switch _, _, pending, failed, ret := d.GetRemappedRows(); {
		case ret == nvml.SUCCESS:
			h.rowsPending = pending
			if failed {
				fault = "a row of its memory could not be remapped: have the GPU exchanged"
			}
		case ret != nvml.ERROR_NOT_SUPPORTED:
			return
		}
	}
	if h.hasRecovery {
		action, ret := d.recovery()
		switch {
		case ret == nvml.SUCCESS && action != nvml.GPU_RECOVERY_ACTION_NONE:
			fault = recoveryWords(action)
		case ret != nvml.SUCCESS && !unknownField(ret):
			return
		}
	}
	h.fault = fault
}

// recovery is the action that the driver wants (nvml.h,
// NVML_FI_DEV_GET_GPU_RECOVERY_ACTION); older drivers do not know the field.
func (d *device) recovery() (nvml.DeviceGpuRecoveryAction, nvml.Return) {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if ret := d.GetFieldValues(values); ret != nvml.SUCCESS {
		return 0, ret
	}
	return nvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(values[0].Value[:4])), nvml.Return(values[0].NvmlReturn)
}

func unknownField(ret nvml.Return) bool {
	return ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_FUNCTION_NOT_FOUND
}

func recoveryWords(action nvml.DeviceGpuRecoveryAction) string {
	switch action {
	case nvml.GPU_RECOVERY_ACTION_GPU_RESET:
		return "the driver asks for a reset of the GPU"
	case nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:
		return "the driver asks for a reboot of the node"
	case nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:
		return "the driver asks for an end of all traffic between GPUs"
	case nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:
		return "the driver asks to let no new job on the GPU, and for a reset when its jobs have ended"
	case nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN:
		return "the driver asks to recover the IMEX domain"
	}
	return fmt.Sprintf("the driver asks for recovery action %d", action)
}
