package slidegate_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	slidegate "example.com/slidegate/clients/go"
)

func trusting(t testing.TB, entries ...string) slidegate.TrustedProxies {
	t.Helper()
	proxies, err := slidegate.NewTrustedProxies(entries...)
	if err != nil {
		t.Fatal(err)
	}
	return proxies
}

func clientOf(proxies slidegate.TrustedProxies, remote string, lines ...string) string {
	r := &http.Request{RemoteAddr: remote, Header: http.Header{"X-Forwarded-For": lines}}
	return proxies.ClientAddr(r).String()
}

// Whoever can choose the address can choose the limit: only what proxies appended is believed.
func TestTheClientIsTheRightmostThatIsNoProxy(t *testing.T) {
	ten := trusting(t, "10.0.0.0/8", "::ffff:192.0.2.1")
	long := strings.Repeat("10.0.0.2,", 254)
	for _, one := range []struct {
		remote string
		lines  []string
		client string
	}{
		{"10.0.0.1:80", nil, "10.0.0.1"},
		{"10.0.0.1:80", []string{"6.6.6.6, 203.0.113.7, 10.0.0.2"}, "203.0.113.7"},
		{"10.0.0.1:80", []string{"6.6.6.6", "203.0.113.7, 10.0.0.2", "10.0.0.3"}, "203.0.113.7"},
		{"[::ffff:10.0.0.1]:80", []string{"::ffff:203.0.113.7, ::ffff:a00:2"}, "203.0.113.7"},
		{"192.0.2.1:80", []string{"203.0.113.7"}, "203.0.113.7"},
		{"198.51.100.9:80", []string{"203.0.113.7"}, "198.51.100.9"},
		{"10.0.0.1:80", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"10.0.0.1:80", []string{" , ", ""}, "10.0.0.1"},
		// Ports and brackets are not part of the address.
		{"10.0.0.1:80", []string{"1.2.3.4:51234"}, "1.2.3.4"},
		{"10.0.0.1:80", []string{" 1.2.3.4:_port-1\t"}, "1.2.3.4"},
		{"10.0.0.1:80", []string{"[2001:DB8::1]:4711"}, "2001:db8::1"},
		{"10.0.0.1:80", []string{"[2001:db8::1]"}, "2001:db8::1"},
		{"10.0.0.1:80", []string{"64:ff9b::1.2.3.4"}, "1.2.3.4"},
		{"[64:ff9b::10.0.0.1]:80", []string{"203.0.113.7"}, "10.0.0.1"}, // no proxy, although it embeds one
		{"[fe80::1%eth0]:80", []string{"203.0.113.7"}, "fe80::1"},
		{"@", []string{"203.0.113.7"}, "invalid IP"},
		// What cannot be read is no client, and hides what is left of it.
		{"10.0.0.1:80", []string{"6.6.6.6, unknown"}, "10.0.0.1"},
		{"10.0.0.1:80", []string{"6.6.6.6, 010.0.0.1"}, "10.0.0.1"},
		{"10.0.0.1:80", []string{"1.2.3.4:123456"}, "10.0.0.1"},
		{"10.0.0.1:80", []string{"1.2.3.4:"}, "10.0.0.1"},
		{"10.0.0.1:80", []string{"[1.2.3.4]"}, "10.0.0.1"},
		{"10.0.0.1:80", []string{"[2001:db8::1"}, "10.0.0.1"},
		{"10.0.0.1:80", []string{"[2001:db8::1]80"}, "10.0.0.1"},
		{"10.0.0.1:80", []string{"fe80::1%eth0"}, "10.0.0.1"},
		{"10.0.0.1:80", []string{"\xff"}, "10.0.0.1"},
		// No quote of a client changes how the rest is read.
		{"10.0.0.1:80", []string{`6.6.6.6", 203.0.113.7`}, "203.0.113.7"},
		{"10.0.0.1:80", []string{`"\", 203.0.113.7, 10.0.0.2`}, "203.0.113.7"},
		// A huge field is read to its bound.
		{"10.0.0.1:80", []string{long + "10.0.0.9"}, "10.0.0.2"},
		{"10.0.0.1:80", []string{"6.6.6.6," + long + "10.0.0.9"}, "10.0.0.1"},
		{"10.0.0.1:80", append([]string{"6.6.6.6"}, strings.Split(strings.Repeat("10.0.0.2 ", 16), " ")[:16]...), "10.0.0.1"},
		{"10.0.0.1:80", []string{strings.Repeat(",", 100_000) + "203.0.113.7"}, "203.0.113.7"},
	} {
		if client := clientOf(ten, one.remote, one.lines...); client != one.client {
			t.Errorf("%s with %.80q is %s, expected %s", one.remote, one.lines, client, one.client)
		}
	}
	if client := clientOf(slidegate.TrustedProxies{}, "10.0.0.1:80", "203.0.113.7"); client != "10.0.0.1" {
		t.Errorf("nobody is trusted, and the client is %s", client)
	}
	if client := clientOf(trusting(t, "unix"), "@", "203.0.113.7"); client != "203.0.113.7" {
		t.Error(client)
	}
	if client := clientOf(trusting(t, "0.0.0.0/0"), "@", "203.0.113.7"); client != "invalid IP" {
		t.Error(client)
	}
}

// The words are what most configurations say.
func TestWordsStandForTheirNetworks(t *testing.T) {
	for addr, isPrivate := range map[string]bool{
		"10.0.0.1": true, "172.31.255.255": true, "192.168.0.1": true, "fd00::1": true, "169.254.1.1": true, "fe80::1": true,
		"127.0.0.1": true, "::1": true, "172.32.0.0": false, "203.0.113.7": false, "2001:db8::1": false, "100.64.0.1": false,
	} {
		client := trusting(t, " private ").Resolve(netip.MustParseAddr(addr), []string{"203.0.113.9"}).String()
		if (client == "203.0.113.9") != isPrivate {
			t.Errorf("%s: %s", addr, client)
		}
	}
	if got := clientOf(trusting(t, "loopback"), "127.0.0.53:1", "203.0.113.9"); got != "203.0.113.9" {
		t.Error(got)
	}
}

// Who mistypes a network must read which one, and what to write.
func TestInvalidProxies(t *testing.T) {
	for _, entry := range []string{"10.0.0/8", "10.0.0.0/33", "", "privat", "10.0.0.1:80", "fe80::1%eth0"} {
		_, err := slidegate.NewTrustedProxies(entry)
		want := `slidegate: invalid trusted proxy "` + entry + `": must be an address or a network, for example 10.0.0.0/8`
		if err == nil || err.Error() != want {
			t.Errorf("%q: %v", entry, err)
		}
	}
	if _, err := slidegate.NewTrustedProxies(make([]string, 0)...); err != nil {
		t.Error(err)
	}
	many := strings.Split(strings.Repeat("10.0.0.0/8 ", 1025), " ")[:1025]
	if _, err := slidegate.NewTrustedProxies(many...); err == nil || !strings.Contains(err.Error(), "too many trusted proxy networks: 1025") {
		t.Error(err)
	}
}

// The trust rests on this: whatever a client sends, what a proxy appends reads the same.
func FuzzNoBytesOfAClientChangeWhatAProxyAppended(f *testing.F) {
	for _, sent := range []string{"", `"`, `\`, `\"`, `a"b\`, ",", `,",`, "6.6.6.6", `"6.6.6.6`} {
		f.Add(sent)
	}
	ten := trusting(f, "10.0.0.0/8")
	f.Fuzz(func(t *testing.T, sent string) {
		if client := clientOf(ten, "10.0.0.1:80", sent+", 203.0.113.7, 10.0.0.2"); client != "203.0.113.7" && strings.Count(sent, ",") < 200 {
			t.Fatalf("%q: %s", sent, client)
		}
		if client := clientOf(ten, "10.0.0.1:80", sent, "203.0.113.7", "10.0.0.2"); client != "203.0.113.7" {
			t.Fatalf("%q: %s", sent, client)
		}
	})
}
