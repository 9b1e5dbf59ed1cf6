// The theme, set before the first paint: a module would come too late and flash.
'use strict';
{
  const ORDER = ['system', 'light', 'dark'];
  const saved = () => {
    try {
      return ORDER.includes(localStorage.getItem('slidegate-theme'))
        ? localStorage.getItem('slidegate-theme')
        : 'system';
    } catch {
      return 'system'; // storage may be forbidden
    }
  };
  const apply = (theme) => {
    if (theme === 'system') document.documentElement.removeAttribute('data-theme');
    else document.documentElement.setAttribute('data-theme', theme);
  };
  let theme = saved();
  apply(theme);

  const tell = (button) => {
    button.textContent = `Theme: ${theme}`;
  };
  addEventListener('DOMContentLoaded', () => {
    const button = document.getElementById('theme');
    tell(button);
    button.addEventListener('click', () => {
      theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
      try {
        localStorage.setItem('slidegate-theme', theme);
      } catch {
        // It holds until the page is left.
      }
      apply(theme);
      tell(button);
      dispatchEvent(new Event('themechange'));
    });
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => dispatchEvent(new Event('themechange')));
}
