package slidegate

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

// Bounds on X-Forwarded-For: what is further to the left is not read.
const (
	maxProxies = 1024
	maxLines   = 16
	maxEntries = 255
)

// TrustedProxies are the proxies whose X-Forwarded-For is believed. The zero value trusts none.
type TrustedProxies struct {
	networks []netip.Prefix
	unix     bool
}

// NewTrustedProxies reads networks (10.0.0.0/8), addresses (10.1.2.3) and the words loopback, private
// (RFC 1918, fc00::/7, link-local and loopback) and unix (peers without an address, on Unix sockets).
func NewTrustedProxies(entries ...string) (TrustedProxies, error) {
	var p TrustedProxies
	for _, entry := range entries {
		texts := []string{strings.TrimSpace(entry)}
		switch texts[0] {
		case "unix":
			p.unix = true
			continue
		case "loopback":
			texts = []string{"127.0.0.0/8", "::1"}
		case "private":
			texts = []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "169.254.0.0/16",
				"fe80::/10", "127.0.0.0/8", "::1"}
		}
		for _, text := range texts {
			network, ok := parseNetwork(text)
			if !ok {
				return TrustedProxies{}, fmt.Errorf("slidegate: invalid trusted proxy %q: "+
					"must be an address or a network, for example 10.0.0.0/8", text)
			}
			p.networks = append(p.networks, network)
		}
	}
	if len(p.networks) > maxProxies {
		return TrustedProxies{}, fmt.Errorf("slidegate: too many trusted proxy networks: %d, "+
			"must be at most %d; join them into wider ones", len(p.networks), maxProxies)
	}
	return p, nil
}

// ClientAddr is the address of the client of a request: the peer's, or if that is a trusted proxy, the
// rightmost in X-Forwarded-For that is not. Only that end was written by proxies; the client chose the
// rest. If it is not an address, the client is the peer. The result is invalid only for a peer without
// an address.
//
// The address is whole: the service counts IPv6 clients by network, as each policy's ipv6_prefix says.
func (p TrustedProxies) ClientAddr(r *http.Request) netip.Addr {
	return p.Resolve(peerOf(r.RemoteAddr), r.Header.Values("X-Forwarded-For"))
}

// Resolve is ClientAddr for other protocols: the peer, invalid if it has no address, and the lines of
// X-Forwarded-For.
func (p TrustedProxies) Resolve(peer netip.Addr, forwarded []string) netip.Addr {
	peer = peer.Unmap().WithZone("")
	if !p.trusts(peer) {
		return canonical(peer)
	}
	client, entries := peer, 0
	for i := len(forwarded) - 1; i >= 0; i-- {
		if len(forwarded)-i > maxLines {
			return canonical(peer)
		}
		for line, more := forwarded[i], true; more; {
			var entry string
			line, entry, more = cutLast(line)
			if entries++; entries > maxEntries {
				return canonical(peer)
			}
			if entry == "" {
				continue
			}
			addr, ok := parseNode(entry)
			if !ok {
				return canonical(peer)
			}
			if client = addr; !p.contains(addr) {
				return canonical(addr)
			}
		}
	}
	return canonical(client)
}

func (p TrustedProxies) trusts(peer netip.Addr) bool {
	if !peer.IsValid() {
		return p.unix
	}
	return p.contains(peer)
}

func (p TrustedProxies) contains(addr netip.Addr) bool {
	addr = addr.Unmap()
	for _, network := range p.networks {
		if network.Contains(addr) {
			return true
		}
	}
	return false
}

// cutLast splits off the last entry of a list. Reading from the right makes what a proxy appended
// independent of what the client sent. Quotes need no care: no address has one.
func cutLast(line string) (rest, entry string, more bool) {
	at := strings.LastIndexByte(line, ',')
	if at < 0 {
		return "", strings.Trim(line, " \t"), false
	}
	return line[:at], strings.Trim(line[at+1:], " \t"), true
}

// parseNode reads 1.2.3.4, 1.2.3.4:80, 2001:db8::1, [2001:db8::1] and [2001:db8::1]:80.
func parseNode(text string) (netip.Addr, bool) {
	isBracketed := strings.HasPrefix(text, "[")
	if isBracketed {
		inside, rest, ok := strings.Cut(text[1:], "]")
		if !ok || rest != "" && !(rest[0] == ':' && isPort(rest[1:])) {
			return netip.Addr{}, false
		}
		text = inside
	} else if host, port, ok := strings.Cut(text, ":"); ok && isPort(port) {
		if addr, err := netip.ParseAddr(host); err == nil && addr.Is4() {
			return addr, true
		}
	}
	addr, err := netip.ParseAddr(text)
	ok := err == nil && addr.Zone() == "" && !(isBracketed && addr.Is4())
	return addr, ok
}

const (
	digits  = "0123456789"
	letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// isPort accepts the obfuscated ports of RFC 7239 as well.
func isPort(text string) bool {
	if strings.HasPrefix(text, "_") {
		return len(text) > 1 && consistsOf(text, digits+letters+"!#$%&'*+-.^_`|~")
	}
	return text != "" && len(text) <= 5 && consistsOf(text, digits)
}

func consistsOf(text, bytes string) bool { return strings.Trim(text, bytes) == "" }

func parseNetwork(text string) (netip.Prefix, bool) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return netip.Prefix{}, false
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if addr := prefix.Addr(); addr.Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(addr.Unmap(), prefix.Bits()-96)
	}
	return prefix.Masked(), true
}

var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// canonical is one form per host: IPv4-mapped and NAT64 addresses are their IPv4 address.
func canonical(addr netip.Addr) netip.Addr {
	addr = addr.Unmap()
	if nat64.Contains(addr) {
		bytes := addr.As16()
		return netip.AddrFrom4([4]byte{bytes[12], bytes[13], bytes[14], bytes[15]})
	}
	return addr
}

// peerOf reads an http.Request's RemoteAddr, which is not an address on Unix sockets.
func peerOf(remote string) netip.Addr {
	peer, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return peer.Addr()
}

// AddrAttribute is the attribute ip of an address. Peers without an address share ::, so that they are
// limited, too.
func AddrAttribute(addr netip.Addr) string {
	if !addr.IsValid() {
		return "::"
	}
	return addr.String()
}
