// Package vault simulates the transit engine of Vault and OpenBao, as far as sops uses it:
// keys that encrypt and decrypt, tokens with policies, namespaces, and a seal.
//
// It answers in the words of Vault 1.19 (builtin/logical/transit, sdk/helper/keysutil and
// http), and must not know what is encrypted.
package vault
