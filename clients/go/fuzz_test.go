package slidegate_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	slidegate "example.com/slidegate/clients/go"
)

// The fields as a server writes them, for the fuzz target.

var quote = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func writeItems(items []slidegate.LimitItem) string {
	texts := make([]string, len(items))
	for i, one := range items {
		texts[i] = fmt.Sprintf(`"%s";r=%d%s%s`, quote.Replace(one.Name), one.Remaining, writeSeconds("t", one.Reset), writeKey(one.PartitionKey))
	}
	return strings.Join(texts, ", ")
}

func writePolicies(policies []slidegate.LimitPolicy) string {
	texts := make([]string, len(policies))
	for i, one := range policies {
		texts[i] = fmt.Sprintf(`"%s";q=%d;qu="%s"%s%s`, quote.Replace(one.Name), one.Quota, quote.Replace(one.Unit),
			writeSeconds("w", one.Window), writeKey(one.PartitionKey))
	}
	return strings.Join(texts, ", ")
}

func writeSeconds(key string, d *time.Duration) string {
	if d == nil {
		return ""
	}
	return fmt.Sprintf(";%s=%d", key, *d/time.Second)
}

func writeKey(key []byte) string {
	if key == nil {
		return ""
	}
	return ";pk=:" + base64.StdEncoding.EncodeToString(key) + ":"
}

// saturated rounds the longest Duration down to seconds, as writing it does.
func saturated(limits slidegate.Limits) string {
	for _, one := range limits.Items {
		if one.Reset != nil {
			*one.Reset = one.Reset.Truncate(time.Second)
		}
	}
	for _, one := range limits.Policies {
		if one.Window != nil {
			*one.Window = one.Window.Truncate(time.Second)
		}
	}
	return fmt.Sprint(writeItems(limits.Items), writePolicies(limits.Policies))
}
