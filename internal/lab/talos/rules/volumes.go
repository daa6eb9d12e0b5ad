package rules

import (
	"fmt"
	"slices"

	"github.com/siderolabs/talos/pkg/machinery/config"
	cfgconfig "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/constants"
)

// RefuseVolumes is why a machine without a TPM does not make the volumes of a config: it has nothing to seal their key with.
// Talos tries for ever, and boots no further.
// Source: talos v1.14.1, internal/pkg/encryption/keys: TPMKeyHandler.
func RefuseVolumes(cfg config.Provider, hasTPM bool) error {
	sealed := func(e cfgconfig.EncryptionConfig) bool {
		return e != nil && slices.ContainsFunc(e.Keys(), func(k cfgconfig.EncryptionKey) bool { return k.TPM() != nil })
	}
	if hasTPM {
		return nil
	}
	for _, doc := range cfg.Documents() {
		if v, ok := doc.(interface {
			Name() string
			Encryption() cfgconfig.EncryptionConfig
		}); ok && sealed(v.Encryption()) {
			return fmt.Errorf("volume %s: failed to encrypt: there is no TPM 2.0", v.Name())
		}
	}
	for _, label := range []string{constants.StatePartitionLabel, constants.EphemeralPartitionLabel} {
		if cfg.Machine() != nil && sealed(cfg.Machine().SystemDiskEncryption().Get(label)) {
			return fmt.Errorf("volume %s: failed to encrypt: there is no TPM 2.0", label)
		}
	}
	return nil
}
